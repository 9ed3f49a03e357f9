package world

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

//go:embed preload/clock.c
var clockSource []byte

// clock is the time of day of database servers, which can be ahead of this machine's.
type clock struct {
	file, library string
	offset        *int64 // nanoseconds; the servers read the same memory
}

// newClock makes the clock of a world. Its files lie in the world's folder, which the servers' users can reach.
func newClock(tb testing.TB, folder string) *clock {
	tb.Helper()
	c := &clock{file: filepath.Join(folder, "clock"), library: filepath.Join(folder, "clock.so")}
	source := c.file + ".c"
	if err := errors.Join(os.WriteFile(source, clockSource, 0o644), os.WriteFile(c.file, make([]byte, 8), 0o644)); err != nil {
		tb.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", c.library, source).CombinedOutput(); err != nil {
		tb.Fatalf("world: a C compiler makes the servers' clock: %v\n%s", err, out)
	}
	if err := c.share(tb); err != nil {
		tb.Fatal(err)
	}
	return c
}

func (c *clock) share(tb testing.TB) error {
	f, err := os.OpenFile(c.file, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	memory, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("world: %s: %w", c.file, err)
	}
	c.offset = (*int64)(unsafe.Pointer(&memory[0]))
	tb.Cleanup(func() { _ = syscall.Munmap(memory) })
	return nil
}

// environment gives a server the clock, as variables NAME=value.
func (c *clock) environment() []string {
	return []string{"LD_PRELOAD=" + c.library, "CLOCK_FILE=" + c.file}
}

// Step sets the clock of all servers ahead by one more duration.
func (c *clock) Step(by time.Duration) { atomic.AddInt64(c.offset, int64(by)) }

// quickest is by how much a server's clock is ahead of this machine's: at most by as much less as the quickest of some
// answers took, which are so many that one was quick.
func quickest(ctx context.Context, ask func() (time.Time, error)) (ahead time.Duration, err error) {
	const some, quick = 10, 5 * time.Millisecond
	best := patience
	for n := 0; n < some || best > quick && ctx.Err() == nil; n++ {
		asked := time.Now()
		now, err := ask()
		if err != nil {
			return 0, err
		}
		if took := time.Since(asked); took < best {
			best, ahead = took, time.Until(now)
		}
	}
	return ahead, nil
}
