package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes ask Linux to kill CMD when this process dies: a CMD whose `run` was
// killed would go on without the lock.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes this process the parent of CMD's orphans, so that it reaps them,
// and knows when all of the group are gone. Else that is up to the first process of a
// container, which may never do it.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
