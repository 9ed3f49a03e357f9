package pgtest

import "syscall"

// attributes of a server process: who runs it, and that it dies with the thread
// that started it. SIGQUIT is PostgreSQL's immediate shutdown.
func attributes(who *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: who, Pdeathsig: syscall.SIGQUIT, Setpgid: true}
}
