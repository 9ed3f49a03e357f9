package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes ask Linux to kill CMD when this process dies: it would go on without the lock.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes this process the parent of CMD's orphans: it reaps them, and knows when all of the
// group are gone. The first process of a container may never reap them.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
