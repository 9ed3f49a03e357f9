package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// process is a server under measurement.
type process struct {
	cmd    *exec.Cmd
	socket string
	// readyAfter is how long it took from the start to the first good answer.
	readyAfter time.Duration
}

// start starts a program that serves on a socket and waits until path answers 200.
func (b *bench) start(socket, path string, cmd *exec.Cmd) (*process, error) {
	cmd.Stderr = os.Stderr
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, socket: socket}
	for time.Since(began) < 20*time.Second {
		if c, err := dial(socket); err == nil {
			ok := c.roundTrip([]byte("GET "+path+" HTTP/1.1\r\nHost: b\r\n\r\n")) == nil && c.status == 200
			c.close()
			if ok {
				p.readyAfter = time.Since(began)
				return p, nil
			}
		}
		time.Sleep(500 * time.Microsecond) // the pause of a poll
	}
	p.stop()
	return nil, errors.New("the server did not become ready")
}

// sidecar starts a sidecar with settings such as "STORE_URL=memory://".
func (b *bench) sidecar(name string, settings ...string) (*process, error) {
	return b.sidecarOf(b.binary, name, nil, settings...)
}

// sidecarOf does so with another binary, and variables that are not a sidecar's own.
func (b *bench) sidecarOf(binary, name string, env []string, settings ...string) (*process, error) {
	socket := filepath.Join(b.folder, name+".sock")
	cmd := exec.Command(binary, "serve")
	cmd.Env = append(slices.Clone(env), "PATH="+os.Getenv("PATH"), "LOCKSIDECAR_SOCKET="+socket, "LOCKSIDECAR_LOG_LEVEL=error", "LOCKSIDECAR_MAX_SESSIONS=5000",
		"LOCKSIDECAR_KEEP=0") // but where kept keys are measured
	for _, s := range settings {
		cmd.Env = append(cmd.Env, "LOCKSIDECAR_"+s)
	}
	return b.start(socket, "/readyz", cmd)
}

// database starts PostgreSQL, with its default durability, and makes a database.
func (b *bench) database(options ...pgtest.Option) (*pgtest.Cluster, string, error) {
	cluster, err := pgtest.Run(options...)
	if err != nil {
		return nil, "", err
	}
	url, err := cluster.MakeDatabase(b.ctx)
	if err != nil {
		cluster.Stop()
		return nil, "", err
	}
	return cluster, url, nil
}

// echo starts the peer of P1: the same server library on the same kind of socket.
func (b *bench) echo() (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(b.folder, "echo.sock")
	_ = os.Remove(socket) // an earlier one does not clean up
	return b.start(socket, "/", exec.Command(self, "echo", socket))
}

// floor starts the least that a sidecar could be (see floorKinds), on a database that has the
// tables of direct and of the sidecar.
func (b *bench) floor(kind, url string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(b.folder, "floor-"+kind+".sock")
	_ = os.Remove(socket)
	return b.start(socket, "/", exec.Command(self, "floor", socket, kind, url))
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}

// memory returns the resident bytes of the process, and the anonymous of them.
func (p *process) memory() (rss, anonymous int) {
	return p.status("VmRSS"), p.status("RssAnon")
}

// status is a size that the kernel tells of the process, in bytes.
func (p *process) status(name string) (size int) {
	path := fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid)
	_, _ = fmt.Sscanf(strings.TrimSuffix(field(path, name), " kB"), "%d", &size)
	return size << 10
}

// cpu is the processor time that the process has used.
func (p *process) cpu() (time.Duration, error) {
	t, err := readTimes(p.cmd.Process.Pid)
	return t.own, err
}

// firstCore is one on which this process may run.
func firstCore() string {
	allowed := field("/proc/self/status", "Cpus_allowed_list")
	return allowed[:strings.IndexFunc(allowed+",", func(r rune) bool { return r < '0' || r > '9' })]
}

// keepOn keeps all threads of a process on a core; on none where that is empty. It has
// started: Go makes as many threads as there were cores then.
func keepOn(core string, cmd *exec.Cmd) error {
	if core == "" {
		return nil
	}
	if out, err := exec.Command("taskset", "-acp", core, strconv.Itoa(cmd.Process.Pid)).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset: %w: %s", err, out)
	}
	return nil
}
