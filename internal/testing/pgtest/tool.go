package pgtest

import (
	"bytes"
	"os/exec"
	"runtime"
)

// toItsEnd runs a program of the server's to its end and returns what it printed; its errors alone
// if it has a Stdout. The kernel ends it with the *thread* that started it. This goroutine keeps that
// thread: another goroutine could end it.
func toItsEnd(cmd *exec.Cmd) ([]byte, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var printed bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &printed
	}
	cmd.Stderr = &printed
	err := cmd.Run()
	return printed.Bytes(), err
}
