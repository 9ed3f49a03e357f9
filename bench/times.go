package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// times is what the kernel tells of a process.
type times struct {
	parent int
	// own is the processor time that it has used, children that of those which have
	// ended.
	own, children time.Duration
}

func readTimes(pid int) (t times, err error) {
	const tick = time.Second / 100 // of /proc, on every Linux
	path := fmt.Sprintf("/proc/%d/stat", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return t, err
	}
	// The program's name may have spaces. The parent is the second field after it;
	// utime, stime and the children's stand from the 12th on.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return t, fmt.Errorf("%s: too short: %q", path, text)
	}
	number := func(i int) int {
		n, e := strconv.Atoi(fields[i])
		err = errors.Join(err, e)
		return n
	}
	t.parent = number(1)
	t.own, t.children = time.Duration(number(11)+number(12))*tick, time.Duration(number(13)+number(14))*tick
	return t, err
}

// serverCPU is the processor time that PostgreSQL has used: its first process, those
// that have ended, and those that live.
func (c *counter) serverCPU() (time.Duration, error) {
	backend, err := c.number("SELECT pg_backend_pid()")
	if err != nil {
		return 0, err
	}
	mine, err := readTimes(int(backend))
	if err != nil {
		return 0, err
	}
	first, err := readTimes(mine.parent)
	if err != nil {
		return 0, err
	}
	sum := first.own + first.children
	processes, err := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		pid, _ := strconv.Atoi(filepath.Base(p))
		if t, err := readTimes(pid); err == nil && t.parent == mine.parent { // others may end meanwhile
			sum += t.own
		}
	}
	return sum, err
}
