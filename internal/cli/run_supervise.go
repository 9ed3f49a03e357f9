package cli

import (
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
	watch

	lock     *heldLock
	group    *group
	terminal *terminal
	lost     bool
	told     bool             // this process was told to end
	stopSent bool             // CMD has got the signal of --on-stop
	grace    <-chan time.Time // nil before a loss, and when the grace has passed
}

// supervise returns CMD's exit code when it has ended; after a loss, when its whole group has.
func (s *supervisor) supervise(signals chan os.Signal) int {
	defer s.watch.end()
	defer s.terminal.takeBack(s.group.id)
	for {
		select {
		case sig := <-signals:
			s.told = s.told || endsWait(sig)
			s.signal(sig.(syscall.Signal))
		case e, open := <-s.events:
			s.hear(e, open)
		case <-s.check.C:
			s.begin()
		case <-s.deadline.C:
			s.expire()
		case a := <-s.answers:
			s.judge(a)
		case <-s.grace:
			s.grace = nil
			s.logf("%s is not gone after %s: SIGKILL", s.options.command[0], s.options.grace)
			s.signal(syscall.SIGKILL)
		case status := <-s.group.changes:
			if status.Stopped() {
				s.stopped(status.StopSignal())
				continue
			}
			if s.lost {
				s.endRest()
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

func (s *supervisor) lose(reason string) {
	s.watch.end()
	s.lost = true
	adoptOrphans()
	s.logf("the lock %s is lost (%s): %s gets SIGTERM, and SIGKILL in %s", s.lock.key, reason, s.options.command[0], s.options.grace)
	s.signal(syscall.SIGTERM)
	s.signal(syscall.SIGCONT) // a process that is stopped would not hear it
	s.grace = time.After(s.options.grace)
}

func (s *supervisor) askToStop(reason string) {
	if reason != "" {
		reason = ": " + reason
	}
	if s.options.onStop == 0 {
		s.logf("somebody asks the holder of %s to stop%s", s.lock.key, reason)
		return
	}
	s.logf("somebody asks the holder of %s to stop%s; %s gets %s", s.lock.key, reason, s.options.command[0], unix.SignalName(s.options.onStop))
	s.stopSent = true
	s.signal(s.options.onStop)
}

// stopped continues CMD, if it has to end, or wants the terminal and can have it. Ctrl-Z does nothing: a
// command that stands still should not hold a lock.
func (s *supervisor) stopped(by syscall.Signal) {
	wantsTerminal := by == syscall.SIGTTIN || by == syscall.SIGTTOU
	if s.lost || by == syscall.SIGTSTP || wantsTerminal && s.terminal.give(s.group.id) {
		s.signal(syscall.SIGCONT)
	}
}

// endRest waits for the rest of CMD's group, and kills it after the grace.
func (s *supervisor) endRest() {
	tick := time.NewTicker(emptyPoll)
	defer tick.Stop()
	var enough <-chan time.Time
	if s.grace == nil {
		enough = time.After(afterKill)
	}
	for s.group.alive() {
		select {
		case <-tick.C:
		case <-s.grace:
			s.grace = nil
			s.signal(syscall.SIGKILL)
			enough = time.After(afterKill)
		case <-enough:
			return
		}
	}
}
