package pgtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Follow makes the cluster a standby of another cluster with TCP. It replaces its data by a copy,
// and streams until it is promoted.
func (c *Cluster) Follow(primary *Cluster) error {
	c.Halt()
	if err := os.RemoveAll(c.data()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", primary.port)
	backup := c.command("pg_basebackup", "--pgdata="+c.data(), "--dbname="+from, "--write-recovery-conf",
		"--checkpoint=fast", "--wal-method=stream", "--no-sync")
	if out, err := toItsEnd(backup); err != nil {
		return fmt.Errorf("pgtest: pg_basebackup: %w\n%s", err, out)
	}
	return c.launch()
}

// Halt ends all processes of the server with kill -9, like the loss of its machine, and keeps its
// data.
func (c *Cluster) Halt() {
	_, pids := c.Freeze()
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	c.Kill()
}

// Freeze stops all processes of the server, and returns a function that continues them.
func (c *Cluster) Freeze() (thaw func(), pids []int) {
	first := c.Pid()
	if first == 0 {
		return func() {}, nil
	}
	_ = syscall.Kill(first, syscall.SIGSTOP) // first, so that it starts no others
	for !isStopped(first) {                  // it may be starting one
		time.Sleep(time.Millisecond)
	}
	pids = append(pids, first)
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", first, first))
	for field := range strings.FieldsSeq(string(children)) {
		if pid, err := strconv.Atoi(field); err == nil {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			pids = append(pids, pid)
		}
	}
	return func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}, pids
}

// isStopped reports whether a process is stopped, or has ended.
func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // after the name
	return strings.ContainsAny(rest[:min(1, len(rest))], "TtZX")
}

// HostAndPort returns the address of a cluster with TCP.
func (c *Cluster) HostAndPort() string { return fmt.Sprintf("127.0.0.1:%d", c.port) }
