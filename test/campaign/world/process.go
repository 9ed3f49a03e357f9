package world

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long a process may take to do what it must.
const patience = 30 * time.Second

// program is a process that is started, ended and started again. Its output is appended to
// one file.
type program struct {
	name, log string
	command   func() *exec.Cmd

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{}
	meant  bool // that it ends is our doing
	broken error
}

func (p *program) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := p.command()
	cmd.Stdout, cmd.Stderr = log, log
	// Ctrl-C is for the campaign; when that dies, all it started does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the kernel means the thread that started it
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("%s: %w", p.name, err)
			return
		}
		p.mu.Lock()
		p.cmd, p.ended, p.meant = cmd, ended, false
		p.mu.Unlock()
		started <- nil
		_ = cmd.Wait()
		p.mu.Lock()
		if !p.meant && p.broken == nil {
			p.broken = fmt.Errorf("%s ended by itself: %s", p.name, cmd.ProcessState)
		}
		p.mu.Unlock()
		close(ended)
	}()
	return <-started
}

// Pid is the process's id.
func (p *program) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Kill ends the process with kill -9 and returns when it has ended.
func (p *program) Kill() error {
	return p.end(syscall.SIGKILL, nil)
}

// end ends the process with a signal, and checks how it ended.
func (p *program) end(sig syscall.Signal, check func(*os.ProcessState) error) error {
	p.mu.Lock()
	p.meant = true
	cmd, ended := p.cmd, p.ended
	p.mu.Unlock()
	_ = cmd.Process.Signal(sig)
	select {
	case <-ended:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-ended
		return fmt.Errorf("%s did not end within %s of %s", p.name, patience, sig)
	}
	if check != nil {
		return check(cmd.ProcessState)
	}
	return nil
}

// Freeze stops the process by SIGSTOP, and returns when it does not run any more.
func (p *program) Freeze() error {
	return freeze(p.Pid())
}

// Thaw lets it go on.
func (p *program) Thaw() error {
	return syscall.Kill(p.Pid(), syscall.SIGCONT)
}

// failed says what went wrong that is nobody's fault but the process's.
func (p *program) failed() error {
	p.mu.Lock()
	err := p.broken
	p.mu.Unlock()
	text, readErr := os.ReadFile(p.log)
	for _, cry := range []string{"DATA RACE", "\npanic: ", "fatal error: "} {
		if strings.Contains(string(text), cry) {
			err = errors.Join(err, fmt.Errorf("%s: %q in %s", p.name, strings.TrimSpace(cry), p.log))
		}
	}
	return errors.Join(err, readErr)
}

// freeze stops a process and waits until the kernel says so.
func freeze(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		switch state(pid) {
		case "T", "t":
			return nil
		case "", "Z", "X":
			return fmt.Errorf("process %d is gone", pid)
		}
	}
	return fmt.Errorf("process %d does not stop", pid)
}

// state is the process's state as /proc tells it, empty when there is no such process.
func state(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	letter, _, _ := strings.Cut(rest, " ")
	return letter
}

// await polls until f is nil.
func await(what string, f func() error) error {
	began := time.Now()
	for {
		err := f()
		if err == nil {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%s: not within %s: %w", what, patience, err)
		}
		time.Sleep(5 * time.Millisecond) // the pause of a poll
	}
}
