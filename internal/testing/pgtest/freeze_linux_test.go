package pgtest_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// TestFreezeLeavesNoProcess: the server may be starting a process for a new connection when it is frozen.
func TestFreezeLeavesNoProcess(t *testing.T) {
	t.Parallel()
	c := pgtest.Start(t, pgtest.InMemory())
	url := c.NewDatabase(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if conn, err := pgx.Connect(ctx, url); err == nil {
					_ = conn.Close(ctx)
				}
			}
		})
	}
	for range 30 {
		thaw, pids := c.Freeze()
		<-time.After(5 * time.Millisecond) // for a process that was being started
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pids[0], pids[0]))
		for pid := range strings.FieldsSeq(string(children)) {
			if !slices.Contains(pids, atoi(t, pid)) {
				t.Errorf("process %s goes on", pid)
			}
		}
		thaw()
		if err != nil {
			t.Fatal(err)
		}
	}
}

func atoi(t *testing.T, text string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
