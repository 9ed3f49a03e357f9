package cli

import (
	"errors"
	"os"
	"runtime"
	"syscall"
)

// group is CMD's process group; CMD is its leader.
type group struct {
	id int
	// changes tells when the leader was stopped or has ended.
	changes chan syscall.WaitStatus
}

func startGroup(path string, argv, env []string) (*group, error) {
	g := &group{changes: make(chan syscall.WaitStatus, 1)}
	started := make(chan error, 1)
	go func() {
		// Linux sends the signal when the starting *thread* ends, so this one stays.
		runtime.LockOSThread()
		process, err := os.StartProcess(path, argv, &os.ProcAttr{
			Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: childAttributes(),
		})
		if err != nil {
			started <- err
			return
		}
		g.id = process.Pid
		started <- nil
		g.wait()
	}()
	return g, <-started
}

// wait reaps, strangers too: the first process of a container is the parent of all orphans.
func (g *group) wait() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return // no children are left
		case pid == g.id:
			g.changes <- status
		}
	}
}

// signal sends a signal to all of the group. One that is gone already is no error.
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
