package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

const (
	stormTime    = 13 * time.Second // for each number of keys; the fault campaign runs for longer
	stormClients = 64               // behind each sidecar
	// A slow machine easily reaches this number of grants. Fewer mean that the storm was idle.
	stormGrants = 450
)

// TestStorm: clients behind two sidecars make all kinds of calls at the same time. A key never has
// two holders, no waiter is left behind, nothing is left at the end, and the server finds no
// deadlock. The server searches after 10 ms, which is before any timeout of the sidecar.
// Proves: promise 1
func TestStorm(t *testing.T) {
	own := pgtest.Start(t, pgroles.Template(), pgtest.WithoutFsync(), pgtest.WithSetting("deadlock_timeout", "10ms"))
	for _, keys := range []int{200, 8} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			url := own.NewDatabase(t)
			storm(t, url, keys)
		})
	}
}

// counts is a counter for many goroutines.
type counts struct{ n atomic.Int64 }

func storm(t *testing.T, url string, keys int) {
	o := options{"STORE_URL": url, "LOG_LEVEL": "info"}
	sidecars := []*sidecar{start(t, o), start(t, o)}
	r := &register{t: t}
	until := time.Now().Add(stormTime)
	var waits, drops counts
	var wg sync.WaitGroup
	for i := range 2 * stormClients {
		c := &stormy{t: t, r: r, id: int64(i + 1), socket: sidecars[i%2].socket, keys: keys, waits: &waits, drops: &drops}
		wg.Go(func() { c.run(until) })
	}
	wg.Wait()
	nothingLeft(t, url)
	t.Logf("%d grants, %d waits in vain, %d drops", r.grants.Load(), waits.n.Load(), drops.n.Load())
	if r.grants.Load() < stormGrants || waits.n.Load() == 0 || drops.n.Load() == 0 {
		t.Errorf("too idle: want at least %d grants, and some timeouts and drops", stormGrants)
	}
	for _, s := range sidecars {
		if code := s.stop(); code != 0 {
			t.Errorf("stopped with code %d", code)
		}
		s.noErrors()
	}
	eventually(t, "the sidecars' connections to end", func() bool { return pgtest.Backends(t, url, anyStatement) == 0 })
	if n := pgtest.Deadlocks(t, url); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// stormy is a client of the storm.
type stormy struct {
	t            *testing.T
	r            *register
	id           int64
	socket       string
	keys         int
	waits, drops *counts
	app          *app
}

func (c *stormy) run(until time.Time) {
	c.again()
	for time.Now().Before(until) {
		key := fmt.Sprintf("storm:%d", rand.N(c.keys))
		if rand.N(10) == 0 {
			c.dropInMidWait(key)
			continue
		}
		c.acquire(key)
	}
	c.app.close()
}

// again makes a new connection.
func (c *stormy) again() {
	if c.app != nil {
		c.app.close()
	}
	a, err := tryDial(c.t, c.socket)
	if err != nil {
		c.t.Fatal(err)
	}
	c.app = a
}

func (c *stormy) dropInMidWait(key string) {
	c.app.send("PUT", lockPath(key), `{"wait_ms":-1}`)
	time.Sleep(rand.N(20 * time.Millisecond)) // a random moment of the wait
	c.again()
	c.drops.n.Add(1)
}

func (c *stormy) acquire(key string) {
	wait := []int{-1, -1, -1, 0, 1, 5, 50, 1000}[rand.N(8)]
	ans := c.app.call("PUT", lockPath(key), fmt.Sprintf(`{"wait_ms":%d}`, wait))
	if ans.status == 423 && wait >= 0 {
		c.waits.n.Add(1)
		return
	}
	token := ans.granted()
	c.r.granted(key, c.id, token)
	time.Sleep(rand.N(time.Millisecond)) // the work under the lock
	c.r.ending(key, c.id)
	if rand.N(5) == 0 {
		c.again()
		c.drops.n.Add(1)
		return
	}
	c.app.release(key, token)
}
