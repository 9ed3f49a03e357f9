package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

const (
	sidecars = 3
	// ttl is the sidecars'.
	ttl = 2 * time.Second
	// quietWithin is how long programs may take until all calls have ended, when nothing fails any more: a call that waits does so for
	// all before it.
	quietWithin = 45 * time.Second
	// freeWithin is how long it may then take until nothing is held that no program knows: what a sidecar was told is done
	// at once, and what it was not told ends with a lease.
	freeWithin = 10 * time.Second
	// nuisances is how long the programs go on after the last fault of a round. What a restart of a sidecar would tidy up stays then.
	nuisances = 3 * time.Second
	// toldWithin is how much later than at the end of its lease a program may note that it lost a key.
	toldWithin = time.Second
	// frozenFor is for how long all sidecars are frozen at the beginning of a round: until each client must have told of the loss of its locks, and a little longer.
	frozenFor = ttl + toldWithin + time.Second
)

var settings = map[string]string{"TTL": ttl.String(), "STORE_TIMEOUT": "2s", "DRAIN_TIMEOUT": "3s", "POSTGRES_POLL_INTERVAL": "500ms"}

// round is for how long faults strike before all is looked at.
const round = 20 * time.Second

// Terms say what a run is made of.
type Terms struct {
	Seed uint64
	// Length is for how long faults strike; 0: until each kind has struck once.
	Length   time.Duration
	Programs []string
	// Go is the path of the program for Go, if it is among them.
	Go    string
	Forms []string // of acquires; empty: all
	Kinds []fault.Kind
	Store world.Engine
}

// rounds are how often all is looked at, while the programs go on.
func (t Terms) rounds() int { return max(1, int(t.Length/round)) }

// rulesOf are those that a run is judged by.
func rulesOf(terms Terms) Rules {
	n := terms.rounds()
	return Rules{
		Timeout: timeout, TTL: ttl, Slack: 4 * time.Second, Told: toldWithin, Recovery: 8 * time.Second,
		Least: Counts{Grants: 20 * n, Timeouts: 5 * n, Cancelled: 2 * n, Again: n, Frozen: n},
	}
}

// campaign is one run.
type campaign struct {
	t     *testing.T
	terms Terms
	logs  string
	world *world.World
	notes *history.Recorder
	began time.Time

	mu     sync.Mutex
	inputs map[int]io.WriteCloser // of the apps
	stored *os.File
	looks  int
}

func run(t *testing.T, binary string, terms Terms) {
	t.Helper()
	logs, err := os.MkdirTemp("", "campaign-clients-")
	if err != nil {
		t.Fatal(err)
	}
	c := &campaign{t: t, terms: terms, logs: logs, inputs: map[int]io.WriteCloser{}, began: time.Now()}
	t.Cleanup(c.keep)
	notes := c.create("world.jsonl")
	c.notes, c.stored = history.NewRecorder("world", notes), c.create("stored.jsonl")
	c.world = world.Start(t, world.Config{
		Folder: world.Folder(t), Logs: logs, Binary: binary, Engine: terms.Store, Settings: settings, Sidecars: sidecars, Apps: len(terms.Programs),
		App: c.app,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { c.watch(ctx) })
	var errs []error
	for i := range terms.rounds() {
		errs = append(errs, c.round(i))
		if errors.Join(errs...) != nil {
			break // a program that hangs does so in the next round, too
		}
	}
	if errors.Join(errs...) == nil {
		errs = append(errs, c.end())
	}
	errs = append(errs, c.world.Failed())
	cancel()
	watch.Wait()
	report, err := JudgeFolder(logs, rulesOf(terms))
	for _, program := range slices.Sorted(maps.Keys(report.Counts)) {
		c.printf("%-12s %+v", program, report.Counts[program])
	}
	for _, name := range slices.Sorted(maps.Keys(report.Errors)) {
		c.printf("%6d %s", report.Errors[name], name)
	}
	errs = append(errs, err, report.Err(), report.write(filepath.Join(logs, "violations.txt")))
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func (c *campaign) create(name string) *os.File {
	f, err := os.Create(filepath.Join(c.logs, name))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = f.Close() })
	return f
}

// app is the command of an app. Its input is for commands.
func (c *campaign) app(name, records string, sockets []string) *exec.Cmd {
	var index, start int
	if _, err := fmt.Sscanf(name, "app%d-%d", &index, &start); err != nil {
		panic(err)
	}
	sidecar := index % len(sockets)
	cmd := task{
		Name: name, Program: c.terms.Programs[index], Records: records, Socket: sockets[sidecar], Sidecar: sidecar,
		Seed: c.terms.Seed*1001 + uint64(start), Actors: actors, Timeout: timeout.Seconds(), Reconnect: reconnect.Seconds(), TTL: asked.Seconds(), Forms: c.terms.Forms, Offset: offset(),
	}.command(c.terms.Go)
	read, write, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	cmd.Stdin = read
	c.mu.Lock()
	c.inputs[index] = write
	c.mu.Unlock()
	c.t.Cleanup(func() { _, _ = read.Close(), write.Close() })
	return cmd
}

// offset is by how much the clock of histories is ahead of the monotonic one. It grows while the machine sleeps.
func offset() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return history.Now() - t.Nano()
}

// watch notes when the machine is slow.
func (c *campaign) watch(ctx context.Context) {
	const every, slow = 20 * time.Millisecond, 50 * time.Millisecond
	for ctx.Err() == nil {
		began := history.Now()
		time.Sleep(every)
		if now := history.Now(); now-began > int64(every+slow) {
			c.notes.Add(history.Op{Kind: history.Slow, Sidecar: -1, Call: began, Return: now})
		}
	}
}

// round strikes, and then looks at what is left.
func (c *campaign) round(number int) error {
	plan := fault.Make(fault.Terms{
		Seed: c.terms.Seed*100 + uint64(number), Length: min(c.terms.Length, round), Brief: c.terms.Length == 0, Kinds: c.terms.Kinds, Sidecars: sidecars, Apps: len(c.terms.Programs), Store: c.terms.Store,
	})
	c.printf("round %d:\n%s", number+1, plan)
	// First, because this ends all leases, and so would tidy up what the other faults leave.
	if err := errors.Join(c.freeze(), c.strike(plan)); err != nil {
		return err
	}
	time.Sleep(nuisances)
	quiet := errors.Join(c.tell("calm"), c.await(""))
	if err := errors.Join(quiet, c.look()); err != nil {
		return err
	}
	return errors.Join(c.tell("again"), c.await("again"), c.tell("go"))
}

// freeze freezes all sidecars for longer than a lease, while each program holds a lock. Only the clocks of the clients can tell that the locks are lost.
func (c *campaign) freeze() error {
	if err := c.awaitHolders(); err != nil {
		return err
	}
	kinds, err := fault.Find(c.terms.Store, []string{"freeze-sidecar"})
	if err != nil {
		return err
	}
	var all fault.Plan
	for sidecar := range sidecars {
		all = append(all, fault.Event{Kind: kinds[0], Target: sidecar, Length: frozenFor})
	}
	return c.strike(all)
}

// awaitHolders waits until each program holds the lock that it holds until it is lost.
func (c *campaign) awaitHolders() error {
	for deadline := time.Now().Add(quietWithin); ; time.Sleep(100 * time.Millisecond) {
		ops, err := readPrograms(c.logs)
		if err != nil {
			return err
		}
		var missing []string
		for _, a := range c.world.Apps {
			if !holdsThrough(ops, a.Name()) {
				missing = append(missing, a.Name())
			}
		}
		err = c.world.Failed()
		if err != nil || len(missing) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%v hold no lock within %s", missing, quietWithin)
		}
	}
}

// holdsThrough reports whether an app holds such a lock.
func holdsThrough(ops []Op, app string) bool {
	holds := map[string]bool{}
	for _, op := range ops { // in the order of the calls
		switch {
		case op.App == app && op.Kind == Acquire && op.Form == through && op.Outcome == Granted:
			holds[op.ID] = true
		case op.Kind == Lost || op.Kind == Release:
			delete(holds, op.Hold)
		}
	}
	return len(holds) > 0
}

// strike carries a plan out, and waits until all is healed.
func (c *campaign) strike(plan fault.Plan) error {
	var struck []error
	var mu sync.Mutex
	fault.Run(c.t.Context(), fault.Scene{World: c.world, Recorder: c.notes, TTL: ttl, LongestTTL: ttl}, plan, func(o fault.Outcome) {
		mu.Lock()
		defer mu.Unlock()
		c.printf("%6.1fs  %s bit %d times", time.Since(c.began).Seconds(), o.Event, o.Bites)
		if o.Err != nil {
			struck = append(struck, fmt.Errorf("%s: %w", o.Event, o.Err))
		}
	})
	return errors.Join(append(struck, c.world.Healthy())...)
}

// end lets the programs close their clients, looks at what is left, and ends them.
func (c *campaign) end() error {
	errs := []error{c.tell(""), c.await("closed"), c.look()}
	return errors.Join(append(errs, c.world.StopApps())...)
}

// tell tells all programs; "" is the end.
func (c *campaign) tell(word string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, input := range c.inputs {
		if word == "" {
			errs = append(errs, input.Close())
		} else {
			_, err := io.WriteString(input, word+"\n")
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// await waits until all programs have noted that they are quiet, since they were told to be.
func (c *campaign) await(form string) error {
	began := history.Now()
	for deadline := time.Now().Add(quietWithin); ; time.Sleep(100 * time.Millisecond) {
		missing, err := c.missing(form, began)
		err = errors.Join(err, c.world.Failed()) // one that has ended never says so
		if err != nil || len(missing) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%v are not quiet within %s (%q)", missing, quietWithin, form)
		}
	}
}

// missing are the apps that have not noted it. They were told a moment before began.
func (c *campaign) missing(form string, began int64) ([]string, error) {
	ops, err := readPrograms(c.logs)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, a := range c.world.Apps {
		if !slices.ContainsFunc(ops, func(op Op) bool {
			return op.App == a.Name() && op.Kind == Quiet && op.Form == form && op.Return > began-int64(time.Second/2)
		}) {
			missing = append(missing, a.Name())
		}
	}
	return missing, nil
}

// look notes what is held, as soon as that is what programs say, or else when it must be.
func (c *campaign) look() error {
	c.looks++
	for deadline := time.Now().Add(freeWithin); ; time.Sleep(200 * time.Millisecond) {
		op, err := c.held()
		late := time.Now().After(deadline)
		if err != nil && late {
			return err
		}
		ops, readErr := readPrograms(c.logs)
		if readErr != nil {
			return readErr
		}
		if err == nil && (late || len(arrange(ops, nil, Rules{}).differs(lastSaid(ops), op)) == 0) {
			text, err := json.Marshal(op)
			if err != nil {
				return err
			}
			_, err = c.stored.Write(append(text, '\n'))
			return err
		}
	}
}

// lastSaid is what the programs say that they hold.
func lastSaid(ops []Op) map[string]Op {
	said := map[string]Op{}
	for _, op := range ops {
		switch op.Kind {
		case Quiet:
			said[op.App] = op
		case Stored:
			clear(said)
		}
	}
	return said
}

// held asks a sidecar for all that is held, and by whom.
func (c *campaign) held() (Op, error) {
	op := Op{ID: fmt.Sprintf("stored-%d", c.looks), App: "campaign", Kind: Stored, Outcome: Done, Call: history.Now()}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", c.world.Sockets()[0])
	}}}
	answer, err := client.Get("http://sidecar/v1/locks?scope=all&limit=1000")
	if err != nil {
		return op, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return op, fmt.Errorf("%s: %s: %w", answer.Status, text, err)
	}
	var page struct {
		Locks []struct {
			Key     string           `json:"key"`
			Holder  map[string]any   `json:"holder"`
			Holders []map[string]any `json:"holders"`
		} `json:"locks"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return op, err
	}
	for _, lock := range page.Locks {
		holders := lock.Holders
		if len(holders) == 0 {
			holders = []map[string]any{lock.Holder}
		}
		for _, holder := range holders {
			op.Keys = append(op.Keys, lock.Key)
			op.Texts = append(op.Texts, fmt.Sprintf("call %v of session %v of %v", holder["data"], holder["session"], holder["pod"]))
		}
	}
	op.Return = history.Now()
	return op, nil
}

// readPrograms reads what programs have written in a folder, and what was held.
func readPrograms(folder string) ([]Op, error) {
	names, err := filepath.Glob(filepath.Join(folder, "app*.jsonl"))
	if err != nil {
		return nil, err
	}
	var texts []io.Reader
	for _, name := range append(names, filepath.Join(folder, "stored.jsonl")) {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		texts = append(texts, bytes.NewReader(text))
	}
	return Read(texts...)
}

// JudgeFolder judges the history of a run that is in a folder.
func JudgeFolder(folder string, rules Rules) (Report, error) {
	ops, err := readPrograms(folder)
	if err != nil {
		return Report{}, err
	}
	file, err := os.Open(filepath.Join(folder, "world.jsonl"))
	if err != nil {
		return Report{}, err
	}
	defer func() { _ = file.Close() }()
	notes, err := history.Read(file)
	if err != nil {
		return Report{}, err
	}
	return Judge(ops, notes, rules), nil
}

// keep saves the files of a run that failed, and says how to repeat it.
func (c *campaign) keep() {
	if !c.t.Failed() {
		_ = os.RemoveAll(c.logs)
		return
	}
	c.printf("failed; the logs and the history are in %s\njudged again: go test ./clients -judge %s\nagain: %s", c.logs, c.logs, c.terms)
}

// String is the command that repeats a run.
func (t Terms) String() string {
	var names []string
	for _, k := range t.Kinds {
		names = append(names, k.Name)
	}
	return fmt.Sprintf("make campaign-clients SEED=%d LENGTH=%s STORE=%s PROGRAMS=%s FAULTS=%s FORMS=%s",
		t.Seed, t.Length, t.Store, strings.Join(t.Programs, ","), strings.Join(names, ","), strings.Join(t.Forms, ","))
}

// printf prints at once.
func (c *campaign) printf(format string, args ...any) {
	fmt.Fprintf(os.Stdout, format+"\n", args...)
}
