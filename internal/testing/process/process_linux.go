package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// attributes of a server's process: it dies with the thread that started it.
func attributes(who *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: who, Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// stopped reports whether all threads of a process have stopped. A signal reaches each a moment later.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		_, state, _ := bytes.Cut(text, []byte(") "))
		if err == nil && !bytes.HasPrefix(state, []byte("T")) {
			return false
		}
	}
	return true
}
