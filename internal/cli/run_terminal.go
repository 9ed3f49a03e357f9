package cli

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is our controlling terminal, or nil. CMD's group gets it when it first wants it, which the
// kernel tells by stopping it: in a pipeline, others of our own group may need it more.
type terminal struct {
	fd int
	// given: CMD's group has had it.
	given bool
}

// openTerminal is called when CMD has started: it ignores SIGTTOU, which CMD must not inherit.
// Otherwise taking the terminal back would stop us.
func openTerminal() *terminal {
	fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	signal.Ignore(syscall.SIGTTOU)
	return &terminal{fd: fd}
}

func (t *terminal) foreground() int {
	id, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return id
}

func (t *terminal) set(group int) bool {
	return unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) == nil
}

// give hands the terminal over to the group, if it is ours to give.
func (t *terminal) give(group int) bool {
	if t == nil || t.foreground() != syscall.Getpgrp() {
		return false
	}
	t.given = t.set(group)
	return t.given
}

// giveAgain is give after the shell's fg, for a group that has had the terminal.
func (t *terminal) giveAgain(group int) {
	if t != nil && t.given {
		_ = t.give(group)
	}
}

// takeBack takes the terminal from the group, so that whoever started us has it.
func (t *terminal) takeBack(group int) {
	if t != nil && t.given && t.foreground() == group {
		_ = t.set(syscall.Getpgrp())
	}
}

// jobControl says whether a shell may be there that continues us: not for the first process of a
// terminal's session, as in a container.
func (t *terminal) jobControl() bool {
	session, err := unix.Getsid(0)
	return err == nil && session != syscall.Getpgrp()
}
