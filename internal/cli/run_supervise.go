package cli

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// emptyPoll is the pause between checks of a group without its leader, because its end is not reported.
	emptyPoll = 10 * time.Millisecond
	// afterKill is how long a killed group may take to end: processes that are not reaped look alive.
	afterKill = time.Second
	// terminalPoll is how often a stopped CMD that wants the terminal is checked. The shell's fg gives it to this process's group
	// without any signal, because this process is not stopped.
	terminalPoll = 200 * time.Millisecond
)

// supervisor keeps CMD and the lock together: CMD gets this process's signals, and does not outlive the lock.
type supervisor struct {
	*runner

	lock           *holder
	group          *group
	terminal       *terminal
	lost           bool
	told           bool             // this process was asked to end
	stopSent       bool             // CMD got the signal of --on-stop
	grace          <-chan time.Time // nil before a loss, and after the grace
	halted         bool             // CMD is stopped, as far as this process knows
	asked          bool             // CMD was asked to end since it was last continued
	awaitsTerminal <-chan time.Time // nil unless CMD is stopped because it wants the terminal
}

// supervise returns CMD's exit code when CMD has ended; after a loss, when its whole group has ended.
func (s *supervisor) supervise(signals chan os.Signal) int {
	defer s.terminal.takeBack(s.group.id)
	for {
		select {
		case sig := <-signals:
			s.passOn(sig.(syscall.Signal))
		case <-s.loss():
			reason, _ := lossOf(s.lock.Err())
			s.lose(reason)
		case request := <-s.lock.stops:
			if !s.lost {
				s.askToStop(request.Reason)
			}
		case <-s.awaitsTerminal:
			s.giveTerminal()
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

// loss is the loss of the lock, until it is known.
func (s *supervisor) loss() <-chan struct{} {
	if s.lost {
		return nil
	}
	return s.lock.Lost()
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

func (s *supervisor) passOn(sig syscall.Signal) {
	if endsWait(sig) {
		s.told = true
		s.ask(sig)
		return
	}
	s.signal(sig)
}

// ask sends a signal that asks CMD to end. A stopped CMD is continued, because it would not handle the signal.
func (s *supervisor) ask(sig syscall.Signal) {
	s.signal(sig)
	if s.halted {
		s.goOn()
	} else {
		s.asked = true // it may just have been stopped
	}
}

// goOn continues CMD.
func (s *supervisor) goOn() {
	s.halted, s.asked, s.awaitsTerminal = false, false, nil
	s.signal(syscall.SIGCONT)
}

func (s *supervisor) lose(reason string) {
	s.lost = true
	adoptOrphans()
	s.signal(syscall.SIGTERM)
	s.goOn()
	s.grace = time.After(s.options.grace)
	s.logf("the lock %s is lost (%s): %s gets SIGTERM, and SIGKILL in %s", s.lock.Key(), reason, s.options.command[0], s.options.grace)
}

func (s *supervisor) askToStop(reason string) {
	if reason != "" {
		reason = ": " + reason
	}
	if s.options.onStop == 0 {
		s.logf("the holder of %s is asked to stop%s", s.lock.Key(), reason)
		return
	}
	s.logf("the holder of %s is asked to stop%s; %s gets %s", s.lock.Key(), reason, s.options.command[0], unix.SignalName(s.options.onStop))
	s.stopSent = true
	s.ask(s.options.onStop)
}

// stopped continues CMD, if CMD must end, or wants the terminal and can have it. Ctrl-Z has no effect, because
// a stopped command should not hold a lock.
func (s *supervisor) stopped(by syscall.Signal) {
	s.halted = true
	switch {
	case s.lost || s.asked || by == syscall.SIGTSTP:
		s.goOn()
	case by == syscall.SIGTTIN || by == syscall.SIGTTOU:
		s.giveTerminal()
	}
}

// giveTerminal continues CMD with the terminal, or tries again later: this process may be in the background.
func (s *supervisor) giveTerminal() {
	switch {
	case s.terminal.give(s.group.id):
		s.goOn()
	case s.terminal != nil:
		s.awaitsTerminal = time.After(terminalPoll)
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
