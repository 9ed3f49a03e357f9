package failover

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

const (
	ttl          = 15 * time.Second
	storeTimeout = 2 * time.Second
)

// quiet is here and not with the tests' other flags, so that the package compiles without its tests.
var quiet = flag.Bool("quiet", false, "the sidecars are quiet after a failover, so exclusion is promised in asynchronous ones, too")

var settings = map[string]string{
	"TTL": ttl.String(), "STORE_TIMEOUT": storeTimeout.String(), "POSTGRES_POLL_INTERVAL": "500ms", "ALLOW_FORCE": "true", "DRAIN_TIMEOUT": "3s",
	"FAILOVER": "quick",
}

// pooled is the index of the sidecar behind PgBouncer. loginRetry is how long PgBouncer waits after a failed connect;
// its default is 15 seconds.
const (
	pooled     = 2
	loginRetry = time.Second
)

// scene is all that runs through all failovers.
type scene struct {
	*pair
	tb       testing.TB
	config   world.Config
	pooler   *pgtest.Switch
	sidecars []*world.Sidecar
	// keepers hold a lock at each sidecar, from the beginning to the end.
	keepers []*client
	probers []*prober
	loyals  int
	// stopProbes ends the probers.
	stopProbes func()

	// found is how long each sidecar took to grant after each failover; overlaps is for how
	// long two believed to hold what an asynchronous one had lost, returned how long it took
	// until a lock could be had that had come back.
	found              [][]time.Duration
	overlaps, returned []time.Duration
}

// newScene starts it with that sidecar, or with one that is built with the race detector.
func newScene(tb testing.TB, binary string) *scene {
	tb.Helper()
	settings := maps.Clone(settings)
	if *quiet {
		settings["FAILOVER"] = "quiet"
	}
	folder := world.Folder(tb)
	if binary == "" {
		var err error
		if binary, err = world.Build(folder); err != nil {
			tb.Fatal(err)
		}
	}
	logs, err := os.MkdirTemp("", "failover-")
	if err != nil {
		tb.Fatal(err)
	}
	s := &scene{pair: newPair(tb), tb: tb, config: world.Config{Folder: folder, Logs: logs, Binary: binary, Settings: settings}}
	tb.Cleanup(func() {
		if !tb.Failed() {
			_ = os.RemoveAll(logs)
			return
		}
		for i, node := range s.nodes {
			if text, err := os.ReadFile(node.LogFile()); err == nil {
				_ = os.WriteFile(filepath.Join(logs, fmt.Sprintf("postgres%d.log", i)), text, 0o644)
			}
		}
		fmt.Println("failed; the logs and the history are in", logs)
	})
	retry := fmt.Sprintf("server_login_retry = %d", loginRetry/time.Second)
	s.pooler = s.leader().Switch(tb, s.leader().URL(s.database), 10, retry)
	if err := s.pooler.Point(s.leader()); err != nil {
		tb.Fatal(err)
	}
	for i, database := range []string{s.url(0, 1), s.url(1, 0), s.pooler.URL} {
		s.sidecars = append(s.sidecars, world.Serve(tb, s.config, i, database))
	}
	s.hold()
	s.probe()
	return s
}

// sockets are where the sidecars listen.
func (s *scene) sockets() (sockets []string) {
	for _, sc := range s.sidecars {
		sockets = append(sockets, sc.Socket())
	}
	return sockets
}

func keeperKey(i int) string { return fmt.Sprintf("keeper:%d", i) }

func (s *scene) hold() {
	s.tb.Helper()
	for i, socket := range s.sockets() {
		k := &client{socket: socket}
		if !k.acquire(keeperKey(i)) {
			s.tb.Fatalf("no lock at %s", s.sidecars[i].Name())
		}
		s.keepers = append(s.keepers, k)
	}
	s.tb.Cleanup(func() {
		for _, k := range s.keepers {
			k.close()
		}
	})
}

// kept is nil while nobody has lost a lock that was held before the failover: neither the
// sidecar says so, nor does the database know it under another grant.
func (s *scene) kept() error {
	var errs []error
	for i, k := range s.keepers {
		key := keeperKey(i)
		there, err := ask[int64](s.leader().URL(s.database), "SELECT token FROM locksidecar.locks WHERE key = $1 AND lease_id IS NOT NULL", key)
		if err == nil && there != k.token {
			err = fmt.Errorf("%s is held under %d, not %d", key, there, k.token)
		}
		errs = append(errs, err, k.holds(key))
	}
	return errors.Join(errs...)
}

// probe lets all sidecars be probed until the test ends.
func (s *scene) probe() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i, socket := range s.sockets() {
		p := &prober{client: client{socket: socket}, name: fmt.Sprintf("probe:%d", i)}
		s.probers = append(s.probers, p)
		running.Go(func() { p.run(ctx) })
	}
	s.found = make([][]time.Duration, len(s.probers))
	s.stopProbes = func() { cancel(); running.Wait() }
	s.tb.Cleanup(s.stopProbes)
}

// foundInTime is nil when each sidecar has granted within 2 seconds; and, where the machine
// has other things to do, as much longer as an app takes to connect to the new primary ten
// times, at its slowest since before the promotion. A PgBouncer may have to
// wait before it tries again; and what a sidecar has just sent through it to a server that
// hangs is given up after its timeout only: to the sidecar, the PgBouncer is well.
func (s *scene) foundInTime(writable times, hangs bool) error {
	var errs []error
	defer writable.connects.stop()
	for i, p := range s.probers {
		since, limit := writable.direct, findsWithin
		if i == pooled {
			since, limit = writable.pooled, limit+loginRetry
		}
		if i == pooled && hangs {
			limit += storeTimeout
		}
		if *quiet {
			limit += ttl
		}
		took, err := p.grantedAfter(since, patience)
		if slow := writable.connects.slowest(); err == nil && took > limit+10*slow {
			err = fmt.Errorf("%s took %s to find the new primary, an app %s to connect to it", s.sidecars[i].Name(), took, slow)
		}
		s.found[i] = append(s.found[i], took)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// connects measures until stop how long it takes to connect to a server, again and again.
type connects struct {
	mu   sync.Mutex // held while one is measured
	most time.Duration
	stop func()
}

// measure begins. The time in which the process stands still between two of them counts,
// too.
func measure(url string) *connects {
	const long, pause = 50 * time.Millisecond, 10 * time.Millisecond
	c := &connects{}
	one := func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		began := time.Now()
		if err := do(url, "SELECT 1"); err != nil {
			return err
		}
		time.Sleep(pause) // the pause of a poll
		if took := time.Since(began) - pause; took > long {
			c.most = max(c.most, took)
		}
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		var err error
		for err == nil && ctx.Err() == nil {
			err = one()
		}
	})
	c.stop = func() { cancel(); running.Wait() }
	return c
}

// slowest is how long it took at most, if that was long. The connection that is being
// measured counts.
func (c *connects) slowest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most
}

// faithful asks the old primary for locks, by a sidecar that knows no other, for so long. The sidecar
// is not ready if one that knows both has come first and marked that server as old. It is not ready either if the server confirms no
// commit, because its synchronous standby has left it. Then its log says that the store itself, which only reads, found the server ready.
func (s *scene) faithful(old int, lasts time.Duration) error {
	s.loyals++
	sc := world.Launch(s.tb, s.config, 100+s.loyals, s.url(old))
	if err := sc.ReadyOrRefused("the server is an old primary", "the store is ready"); err != nil {
		return err
	}
	end := time.Now().Add(lasts)
	c := &client{socket: sc.Socket()}
	defer c.close()
	for i := 0; time.Now().Before(end); i++ {
		if key := fmt.Sprintf("old:%d:%d", s.loyals, i); c.acquire(key) {
			return fmt.Errorf("the old primary has granted %s under %d", key, c.token)
		}
	}
	return sc.Kill()
}

// summary is the figures of all failovers.
func (s *scene) summary() (text string) {
	for i, took := range s.found {
		way := "knows both hosts"
		if i == pooled {
			way = "behind PgBouncer"
		}
		text += fmt.Sprintf("%s (%s): first grant after the new primary took writes: %s\n", s.sidecars[i].Name(), way, figures(took))
	}
	text += fmt.Sprintf("asynchronous: two believed to hold for %s\n", figures(s.overlaps))
	return text + fmt.Sprintf("asynchronous: a lock that had come back could be had after %s\n", figures(s.returned))
}

func figures(took []time.Duration) string {
	if len(took) == 0 {
		return "not run"
	}
	sorted := slices.Sorted(slices.Values(took))
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("p50 %s, max %s, of %d", round(sorted[len(sorted)/2]), round(sorted[len(sorted)-1]), len(sorted))
}
