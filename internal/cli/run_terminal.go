package cli

import (
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the controlling terminal of this process, or nil. CMD's group gets it when it first needs it; the
// kernel shows this by stopping CMD. In a pipeline, other processes of this process's group may need it more.
type terminal struct{ fd int }

// openTerminal is called after the start of CMD, because CMD must not inherit ignored signals: SIGTTOU would
// stop this process when it takes the terminal back.
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

// give hands the terminal over to the group, if this process's group has it.
func (t *terminal) give(group int) bool {
	return t != nil && t.foreground() == syscall.Getpgrp() && t.set(group)
}

// takeBack takes the terminal from the group, so that the parent of this process has it.
func (t *terminal) takeBack(group int) {
	if t != nil && t.foreground() == group {
		_ = t.set(syscall.Getpgrp())
	}
}
