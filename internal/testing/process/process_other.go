//go:build unix && !linux

package process

import "syscall"

// attributes of a server's process. Here nothing stops the server if the tests crash.
func attributes(who *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: who, Setpgid: true}
}

// stopped cannot be asked here.
func stopped(int) bool { return true }
