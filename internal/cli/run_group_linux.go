package cli

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes make Linux kill CMD when this process dies, because CMD would continue without the lock.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes this process the parent of CMD's orphans. It then reaps them, and knows when the whole
// group has ended. The first process of a container may never reap orphans.
func adoptOrphans() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }
