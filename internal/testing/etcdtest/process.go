package etcdtest

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
)

const logTail = 3000 // bytes of a server's log in an error

// process is one run of a server.
type process struct {
	pid   int
	ended chan struct{} // closed at the end of the process
}

// spawn starts a server. The kernel ends it together with the *thread* that started it, so one thread
// stays reserved while the server runs.
func spawn(binary string, args, env []string, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("etcdtest: %w", err)
	}
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append([]string{"ETCD_UNSUPPORTED_ARCH=" + runtime.GOARCH, "GOMAXPROCS=2"}, env...)
	cmd.SysProcAttr = attributes()
	p := &process{ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(p.ended)
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
		return nil, fmt.Errorf("etcdtest: %w", err)
	}
	return p, nil
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false // its id may be reused
	default:
		return true
	}
}

// signal sends a signal to a server that runs.
func (p *process) signal(sig syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(p.pid, sig)
	}
}

// kill ends a server, also a frozen one, and returns when it has ended.
func (p *process) kill() {
	if p.running() {
		p.signal(syscall.SIGKILL)
		<-p.ended
	}
}

func tail(file string) []byte {
	text, err := os.ReadFile(file)
	if err != nil {
		return []byte(err.Error())
	}
	return bytes.TrimSpace(text[max(0, len(text)-logTail):])
}

const folderPrefix = "lsetcd-"

// newFolder makes a cluster's folder with this process's id in its name, and removes those of test processes
// that have ended.
func newFolder() (string, error) {
	folders, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*-*"))
	for _, folder := range folders {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), folderPrefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(folder)
		}
	}
	folder, err := os.MkdirTemp("", folderPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", fmt.Errorf("etcdtest: %w", err)
	}
	return folder, nil
}
