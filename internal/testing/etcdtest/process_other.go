//go:build unix && !linux

package etcdtest

import "syscall"

// attributes of a server's process. Here nothing stops the server if the tests crash.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped cannot be asked here.
func stopped(int) bool { return true }
