//go:build unix && !linux

package pgtest

import "syscall"

// attributes of a server process: who runs it. Here nothing stops the server
// when the tests crash; the next run does.
func attributes(who *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: who, Setpgid: true}
}
