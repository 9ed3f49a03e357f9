//go:build !linux

package cli

import "syscall"

// childAttributes: only Linux can end a child together with its parent.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// adoptOrphans is for Linux: elsewhere the first process reaps.
func adoptOrphans() {}
