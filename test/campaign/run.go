package campaign

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/check"
	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/load"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

const (
	sidecars, apps = 3, 2
	// clients are those of one app; keys are few, so that they fight.
	clients, keys = 16, 12

	ttl = 2 * time.Second
	// longestTTL is the step in which sidecars keep what clients ask for at most: twice the TTL.
	longestTTL = 5 * time.Second
	// contending is how long the clients contend when the traces of the last fault are gone:
	// only there the rules for calm times are judged.
	contending = 10 * time.Second
	// longer is how much longer they may, where too little has happened.
	longer = time.Minute
	// every is how often a line of progress is printed.
	every = 10 * time.Second
)

// settings are the sidecars', without their prefix.
var settings = map[string]string{
	"TTL": ttl.String(), "STORE_TIMEOUT": "2s", "DRAIN_TIMEOUT": "3s", "ALLOW_FORCE": "true",
}

func settingsOf(store world.Engine) map[string]string {
	all := maps.Clone(settings)
	if store == world.PostgreSQL {
		all["POSTGRES_POLL_INTERVAL"] = "500ms"
	}
	return all
}

// campaign is one run: a world, a load, faults, and a judgement.
type campaign struct {
	t      *testing.T
	store  world.Engine
	plan   fault.Plan
	folder string // short-lived, with a short path
	logs   string // what is kept when it fails
	keeps  []time.Duration
	world  *world.World
	notes  *history.Recorder
	began  time.Time
	// unwatch ends observe.
	unwatch func()

	mu       sync.Mutex
	outcomes []fault.Outcome
}

// run runs one campaign.
func run(t *testing.T, binary string, keep []time.Duration, terms fault.Terms) {
	t.Helper()
	terms.Sidecars, terms.Apps = sidecars, apps
	logs, err := os.MkdirTemp("", "campaign-")
	if err != nil {
		t.Fatal(err)
	}
	c := &campaign{t: t, keeps: keep, store: terms.Store, plan: fault.Make(terms), folder: world.Folder(t), logs: logs}
	if terms.Brief {
		terms.Length = c.plan.Length()
	}
	t.Cleanup(func() { c.keep(terms) })
	c.printf("%s, seed %d, %s, keys are kept for %s, %d faults:\n%s", terms.Store, terms.Seed, terms.Length, keep, len(c.plan), c.plan)
	if err := os.WriteFile(filepath.Join(c.logs, "plan.txt"), []byte(replay(terms, keep)+"\n\n"+c.plan.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	notes, err := os.Create(filepath.Join(c.logs, "world.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = notes.Close() })
	c.notes = history.NewRecorder("world", notes)
	var each []map[string]string
	for i, d := range keep {
		each = append(each, map[string]string{"KEEP": d.String()})
		if now := history.Now(); d > 0 {
			c.notes.Add(history.Op{Kind: history.Keeps, Sidecar: i, Call: now, Until: now + int64(d)})
		}
	}
	c.world = world.Start(t, world.Config{
		Folder: c.folder, Logs: c.logs, Binary: binary, Engine: terms.Store, Settings: settingsOf(terms.Store), Each: each, Pooled: terms.Pooled, Sidecars: sidecars, Apps: apps,
		App: func(name, records string, sockets []string) *exec.Cmd {
			// Another for each start: nobody may repeat what he did before, ids and all.
			seed := fnv.New64()
			fmt.Fprintf(seed, "%d %s", terms.Seed, name)
			return appCommand(appTask{
				Name: name, Records: records, Sockets: sockets, Fence: filepath.Join(c.folder, "fence"), Seed: seed.Sum64(),
			})
		},
	})
	c.observe()
	c.strike(terms.Length)
	if err := errors.Join(struck(c.plan, c.outcomes), c.settle(terms.Length), c.left(), c.drained(), c.world.Failed(), c.judge(terms.Length)); err != nil {
		t.Error(err)
	}
}

// observe notes who waits until unwatch.
func (c *campaign) observe() {
	ctx, cancel := context.WithCancel(c.t.Context())
	var observer sync.WaitGroup
	observer.Go(func() { load.Observe(ctx, c.world.Store.View(), 20*time.Millisecond, c.notes) })
	c.unwatch = func() { cancel(); observer.Wait() }
	c.t.Cleanup(c.unwatch)
}

// strike carries the plan out and goes on until the length is over.
func (c *campaign) strike(length time.Duration) {
	c.began = time.Now()
	ctx, cancel := context.WithCancel(c.t.Context())
	var progress sync.WaitGroup
	progress.Go(func() { c.progress(ctx) })
	fault.Run(ctx, fault.Scene{World: c.world, Recorder: c.notes, TTL: ttl, LongestTTL: longestTTL}, c.plan, c.healed)
	c.rest(length - time.Since(c.began))
	cancel()
	progress.Wait()
}

// healed notes what became of a fault.
func (c *campaign) healed(o fault.Outcome) {
	c.mu.Lock()
	c.outcomes = append(c.outcomes, o)
	c.mu.Unlock()
	c.printf("%6.1fs  %s bit %d times", time.Since(c.began).Seconds(), o.Event, o.Bites)
}

// progress says every few seconds that there is some.
func (c *campaign) progress(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		var bytes int64
		for _, file := range c.records() {
			if info, err := os.Stat(file); err == nil {
				bytes += info.Size()
			}
		}
		c.mu.Lock()
		healed := len(c.outcomes)
		c.mu.Unlock()
		c.printf("%6.1fs  %d of %d faults healed, %d KB of history", time.Since(c.began).Seconds(), healed, len(c.plan), bytes>>10)
	}
}

// settle waits until everything works again and the traces of faults are gone, lets the
// clients contend until enough has happened, and then lets them go.
func (c *campaign) settle(length time.Duration) error {
	errs := []error{c.world.Healthy()}
	c.rest(check.DefaultRules().Recovery)
	for _, a := range c.world.Apps {
		errs = append(errs, a.Calm())
	}
	recalled := c.recalls()
	c.rest(contending)
	for end := time.Now().Add(longer); time.Now().Before(end) && c.t.Context().Err() == nil; { // where the machine is slow
		if ops, err := c.history(); err != nil || check.Enough(ops, c.rules(length)) {
			break
		}
		c.rest(contending)
	}
	recalled()
	c.unwatch()
	return errors.Join(append(errs, c.world.StopApps())...)
}

// recalls has a sidecar that keeps keys be asked for one by another, ten times as often as must be judged. The returned function ends that.
func (c *campaign) recalls() (end func()) {
	who := keepers(c.keeps)
	if len(who) == 0 {
		return func() {}
	}
	client := func(i int) *load.Keeper {
		return &load.Keeper{Recorder: c.notes, Sidecar: i, Socket: c.world.Sidecars[i].Socket(), Key: "recalled"}
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	var both sync.WaitGroup
	both.Go(func() { load.Recalls(ctx, client(who[0]), client((who[0]+1)%sidecars), 10*leastRecalled) })
	return func() { cancel(); both.Wait() }
}

func (c *campaign) rest(d time.Duration) {
	select {
	case <-c.t.Context().Done():
	case <-time.After(d):
	}
}

// records are the files with the history.
func (c *campaign) records() []string {
	files := []string{filepath.Join(c.logs, "world.jsonl")}
	for _, a := range c.world.Apps {
		files = append(files, a.Records()...)
	}
	return files
}

// keep saves the files of a run that failed, and says how to repeat it.
func (c *campaign) keep(terms fault.Terms) {
	if !c.t.Failed() {
		_ = os.RemoveAll(c.logs)
		return
	}
	c.printf("failed; the logs and the history are in %s\nagain: %s", c.logs, replay(terms, c.keeps))
}

// replay is the command that runs a campaign again.
func replay(terms fault.Terms, keep []time.Duration) string {
	if terms.Brief {
		terms.Length = 0
	}
	var names []string
	for _, k := range terms.Kinds {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	args := fmt.Sprintf("make campaign SEED=%d LENGTH=%s", terms.Seed, terms.Length)
	if terms.Store != world.PostgreSQL {
		args += " STORE=" + string(terms.Store)
	}
	if len(names) < len(kindsOf(terms.Store, keep)) {
		args += " FAULTS=" + strings.Join(slices.Compact(names), ",")
	}
	if text := keepText(keep); text != defaultKeep {
		args += " KEEP=" + text
	}
	if terms.Pooled {
		args += " POOLED=true"
	}
	return args
}

// printf prints at once: go test shows a test's log when the test has ended.
func (c *campaign) printf(format string, args ...any) {
	fmt.Fprintf(os.Stdout, format+"\n", args...)
}
