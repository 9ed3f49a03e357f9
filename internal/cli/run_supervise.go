package cli

import (
	"context"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// emptyPoll is the pause between looks at a group without its leader: nobody tells of its end.
	emptyPoll = 10 * time.Millisecond
	// afterKill is how long a killed group may take to be gone: processes that nobody
	// reaps look alive.
	afterKill = time.Second
)

// supervisor keeps CMD and the lock together: CMD gets our signals, and does not outlive the lock.
type supervisor struct {
	*runner

	lock     *heldLock
	group    *group
	terminal *terminal
	lost     bool
}

// supervise returns CMD's exit code when it has ended; after a loss, when its whole group has.
func (s *supervisor) supervise(signals chan os.Signal) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := s.lock.watch(ctx)
	defer s.terminal.takeBack(s.group.id)
	var grace <-chan time.Time
	for {
		select {
		case sig := <-signals:
			s.signal(sig.(syscall.Signal))
		case n := <-w.news:
			s.take(n)
			if n.kind == newsLost {
				grace = time.After(s.options.grace)
			}
		case <-grace:
			grace = nil
			s.logf("%s is not gone after %s: SIGKILL", s.options.command[0], s.options.grace)
			s.signal(syscall.SIGKILL)
		case status := <-s.group.changes:
			if status.Stopped() {
				s.stopped(status.StopSignal())
				continue
			}
			if s.lost {
				s.endRest(grace)
			}
			return codeOf(status)
		}
	}
}

func codeOf(status syscall.WaitStatus) int {
	if status.Signaled() {
		return exitSignalBase + int(status.Signal())
	}
	return status.ExitStatus()
}

func (s *supervisor) signal(sig syscall.Signal) {
	if err := s.group.signal(sig); err != nil {
		s.logf("%s for %s: %v", unix.SignalName(sig), s.options.command[0], err)
	}
}

func (s *supervisor) take(n news) {
	switch n.kind {
	case newsLost:
		s.lost = true
		adoptOrphans()
		s.logf("the lock %s is lost (%s): %s gets SIGTERM, and SIGKILL in %s", s.lock.key, n.reason, s.options.command[0], s.options.grace)
		s.signal(syscall.SIGTERM)
		s.signal(syscall.SIGCONT) // a process that is stopped would not hear it
	case newsStop:
		why := ""
		if n.reason != "" {
			why = ": " + n.reason
		}
		if s.options.onStop == 0 {
			s.logf("somebody asks the holder of %s to stop%s", s.lock.key, why)
			return
		}
		s.logf("somebody asks the holder of %s to stop%s; %s gets %s", s.lock.key, why, s.options.command[0], unix.SignalName(s.options.onStop))
		s.signal(s.options.onStop)
	}
}

// stopped continues CMD, if it has to end, or wants the terminal and can have it. Ctrl-Z does nothing: a
// command that stands still should not hold a lock.
func (s *supervisor) stopped(by syscall.Signal) {
	wantsTerminal := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	if s.lost || by == syscall.SIGTSTP || wantsTerminal && s.terminal.give(s.group.id) {
		s.signal(syscall.SIGCONT)
	}
}

// endRest waits for the rest of CMD's group, and kills it after the grace; nil: that has passed.
func (s *supervisor) endRest(grace <-chan time.Time) {
	tick := time.NewTicker(emptyPoll)
	defer tick.Stop()
	var enough <-chan time.Time
	if grace == nil {
		enough = time.After(afterKill)
	}
	for s.group.alive() {
		select {
		case <-tick.C:
		case <-grace:
			grace = nil
			s.signal(syscall.SIGKILL)
			enough = time.After(afterKill)
		case <-enough:
			return
		}
	}
}
