// Package process runs servers for tests: real ones that can be killed and frozen, on links that can be cut.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const logTail = 3000 // bytes of a server's log in an error

// Process is one run of a server. Its methods may be called on nil, which has ended.
type Process struct {
	// Ended is closed at the end of the process.
	Ended chan struct{}
	pid   int
}

// Start starts a server that appends to a log. A nil user is the caller. The kernel ends the server together with the
// *thread* that started it, so one thread stays reserved while the server runs.
func Start(cmd *exec.Cmd, who *syscall.Credential, logFile string) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes(who)
	p := &Process{Ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(p.Ended)
		err := cmd.Start()
		_ = log.Close()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("process: %w", err)
	}
	return p, nil
}

// Running reports whether the process runs.
func (p *Process) Running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.Ended:
		return false // its id may be reused
	default:
		return true
	}
}

// Pid is that of the process, also after its end.
func (p *Process) Pid() int { return p.pid }

// Signal sends a signal to a process that runs.
func (p *Process) Signal(sig syscall.Signal) {
	if p.Running() {
		_ = syscall.Kill(p.pid, sig)
	}
}

// Kill ends a process as kill -9 does, also a frozen one, and returns when it has ended.
func (p *Process) Kill() {
	if p.Running() {
		p.Signal(syscall.SIGKILL)
		<-p.Ended
	}
}

// Freeze stops a process until Thaw, and returns when it has stopped. Its connections stay open.
func (p *Process) Freeze() {
	p.Signal(syscall.SIGSTOP)
	for p.Running() && !stopped(p.pid) {
		time.Sleep(time.Millisecond)
	}
}

// Thaw lets a frozen process go on.
func (p *Process) Thaw() { p.Signal(syscall.SIGCONT) }

// Tail returns the end of a log.
func Tail(file string) []byte {
	text, err := os.ReadFile(file)
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(text[max(0, len(text)-logTail):])
}

// NewFolder makes a server's folder in parent, or in the system's folder for temporary files. Its name begins with a prefix and
// this process's id. It removes those of test processes that have ended.
func NewFolder(parent, prefix string) (string, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	folders, _ := filepath.Glob(filepath.Join(parent, prefix+"*-*"))
	for _, folder := range folders {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), prefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(folder)
		}
	}
	folder, err := os.MkdirTemp(parent, prefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", fmt.Errorf("process: %w", err)
	}
	return folder, nil
}
