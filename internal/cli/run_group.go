package cli

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
)

// started contains the groups whose leaders have not ended, by id. With --again, the goroutine of an earlier
// group may reap the leader of a later one. The mutex is held while a process starts, so that its end is not
// reaped before it is in the map.
var started = struct {
	sync.Mutex
	groups map[int]*group
}{groups: map[int]*group{}}

// group is CMD's process group. CMD is its leader.
type group struct {
	id int
	// changes reports when the leader was stopped or has ended.
	changes chan syscall.WaitStatus
}

func startGroup(path string, argv, env []string) (*group, error) {
	g := &group{changes: make(chan syscall.WaitStatus, 1)}
	begun := make(chan error, 1)
	go func() {
		// Linux sends the signal when the starting *thread* ends, so this goroutine keeps its thread.
		runtime.LockOSThread()
		started.Lock()
		process, err := os.StartProcess(path, argv, &os.ProcAttr{
			Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: childAttributes(),
		})
		if err == nil {
			g.id = process.Pid
			started.groups[g.id] = g
		}
		started.Unlock()
		begun <- err
		if err == nil {
			reap()
		}
	}()
	return g, <-begun
}

// reap reaps all children, including foreign ones, because the first process of a container is the parent of
// all orphans.
func reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return // there are no more children
		default:
			changed(pid, status)
		}
	}
}

func changed(pid int, status syscall.WaitStatus) {
	started.Lock()
	g := started.groups[pid]
	if g != nil && !status.Stopped() {
		delete(started.groups, pid)
	}
	started.Unlock()
	if g != nil {
		g.changes <- status
	}
}

// signal sends a signal to the whole group. If the group has already ended, this is not an error.
func (g *group) signal(sig syscall.Signal) error {
	err := syscall.Kill(-g.id, sig)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

func (g *group) alive() bool {
	return !errors.Is(syscall.Kill(-g.id, 0), syscall.ESRCH)
}
