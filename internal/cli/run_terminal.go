package cli

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is our controlling terminal, or nil. CMD's group gets it when it first wants it, which the
// kernel tells by stopping it: in a pipeline, others of our own group may need it more.
type terminal struct{ fd int }

// openTerminal is called when CMD has started, which must not inherit what it ignores: SIGTTOU would stop
// us when we take the terminal back.
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
	return t != nil && t.foreground() == syscall.Getpgrp() && t.set(group)
}

// takeBack takes the terminal from the group, so that whoever started us has it.
func (t *terminal) takeBack(group int) {
	if t != nil && t.foreground() == group {
		_ = t.set(syscall.Getpgrp())
	}
}
