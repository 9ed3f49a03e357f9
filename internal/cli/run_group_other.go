//go:build !linux

package cli

import "syscall"

// childAttributes: only Linux can kill a child when its parent dies.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// adoptOrphans works only on Linux. Elsewhere, the first process reaps orphans.
func adoptOrphans() {}
