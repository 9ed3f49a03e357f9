package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pace"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/test/campaign/check"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/load"
	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

const (
	pods, clients, keys = 3, 24, 12
	// pause is for how long all goes on between two replacements.
	pause = time.Second
)

// rolling is a database, its pods, and clients that go on while the pods change from one version to another.
type rolling struct {
	*testing.T
	url   string
	pods  []*pod
	notes *history.Recorder
	// away are when a pod's sidecar was being replaced.
	away []absence
	// slowness is by how much the machine may have delayed the answer to an operation.
	slowness func(history.Op) time.Duration
}

type absence struct {
	pod      int
	from, to int64
}

// TestRolling replaces the sidecars one by one by those of the next release, the first of
// which migrates, and then by those of the release before; and so on, for as long as asked.
// Proves: trap migration
func TestRolling(t *testing.T) {
	t.Parallel()
	r := &rolling{T: t, url: cluster.NewDatabase(t), notes: history.NewRecorder("rolling", nil), slowness: slownessOf(pace.Start(t))}
	for i := range pods {
		p := newPod(t, fmt.Sprintf("pod%d", i), r.url)
		p.run(built.previous)
		p.ready()
		r.pods = append(r.pods, p)
	}
	leave := r.clients()
	r.phase()
	letGo := r.reader()
	for i := range r.pods {
		if i == 0 {
			r.replace(i, built.next, func() {
				// The migration finds a table in use, and the others do not notice.
				r.pods[0].await("a migration that waits", func() error {
					if strings.Contains(r.pods[0].said(), "another session uses a table") {
						return nil
					}
					return errors.New(r.pods[0].said())
				})
				time.Sleep(pause / 2) // traffic
				letGo()
			})
			continue
		}
		r.replace(i, built.next, func() {})
	}
	r.pods[0].saidOnce("the schema was migrated", fmt.Sprintf("to=%d", built.schema))
	if is := pgtest.Query[int32](t, r.url, "SELECT schema_version FROM locksidecar.meta"); int(is) != built.schema {
		t.Errorf("the schema is version %d, want %d", is, built.schema)
	}
	r.roll(built.previous)
	for began := time.Now(); time.Since(began) < *length && !t.Failed(); {
		r.roll(built.next)
		r.roll(built.previous)
	}
	r.pods[0].await("enough traffic", func() error {
		ops, err := r.notes.Ops()
		if err == nil && !check.Enough(ops, rules()) {
			err = fmt.Errorf("too little in %d operations", len(ops))
		}
		return err
	})
	ops := leave()
	r.judge(ops)
}

// clients come, and go when leave is called, which returns what they wrote down.
func (r *rolling) clients() (leave func() []history.Op) {
	ctx, cancel := context.WithCancel(r.Context())
	fence, err := load.OpenFence(filepath.Join(r.TempDir(), "fence"), keys)
	if err != nil {
		r.Fatal(err)
	}
	var sockets []string
	for _, p := range r.pods {
		sockets = append(sockets, p.socket)
	}
	var all sync.WaitGroup
	all.Go(func() { load.Observe(ctx, stored.Postgres(r.url), 20*time.Millisecond, r.notes) })
	all.Go(func() {
		if err := load.Run(ctx, load.Config{
			Sockets: sockets, Clients: clients, Keys: keys, Seed: 1, Recorder: r.notes, TTL: ttl, Fence: fence,
		}); err != nil {
			r.Error(err)
		}
	})
	r.Cleanup(func() { cancel(); all.Wait(); _ = fence.Close() })
	return func() []history.Op {
		cancel()
		all.Wait()
		ops, err := r.notes.Ops()
		if err != nil {
			r.Error(err)
		}
		return ops
	}
}

// phase lets all go on for a while, and until each sidecar has granted something.
func (r *rolling) phase() {
	r.Helper()
	began := history.Now()
	time.Sleep(pause) // traffic
	r.pods[0].await("one of many that grant locks", func() error {
		ops, err := r.notes.Ops()
		granted := make(map[int]bool)
		for _, op := range ops {
			if op.Call > began && op.Kind == history.Acquire && op.Outcome == history.Granted {
				granted[op.Sidecar] = true
			}
		}
		if err == nil && len(granted) < len(r.pods) {
			err = fmt.Errorf("only these pods have: %v", granted)
		}
		return err
	})
}

func (r *rolling) roll(binary string) {
	for i := range r.pods {
		r.replace(i, binary, func() {})
	}
}

// replace replaces the sidecar of a pod, as a rollout does.
func (r *rolling) replace(i int, binary string, meanwhile func()) {
	p := r.pods[i]
	from := history.Now()
	ended := r.notes.Begin(history.Op{Kind: history.Ended, Sidecar: i, Note: "replaced by " + filepath.Base(binary)})
	p.stop()
	r.notes.End(ended)
	p.run(binary)
	meanwhile()
	p.ready()
	r.away = append(r.away, absence{i, from, history.Now()})
	r.phase()
}

// reader reads a table in a transaction that stays open until letGo.
func (r *rolling) reader() (letGo func()) {
	conn, err := pgx.Connect(r.Context(), r.url)
	if err != nil {
		r.Fatal(err)
	}
	if _, err := conn.Exec(r.Context(), "BEGIN; SELECT count(*) FROM locksidecar.locks"); err != nil {
		r.Fatal(err)
	}
	return func() { _ = conn.Close(context.Background()) }
}

// rules are those of a rollout.
func rules() check.Rules {
	r := check.DefaultRules()
	// A sidecar that is replaced leaves no traces for others.
	r.Recovery = 0
	r.Least = check.Counts{Grants: 150, Waited: 50, Drops: 50, Ordered: 20, HandOffs: 2}
	return r
}

// judge judges the history, and what is left.
func (r *rolling) judge(ops []history.Op) {
	rules := rules()
	report := check.All(ops, rules)
	r.Logf("%+v", report.Counts)
	if err := report.Err(); err != nil {
		r.Errorf("%v\nthe history: %s", err, r.keep(ops, rules, report))
	}
	r.uninterrupted(ops)
	if err := load.EveryKey(context.Background(), r.pods[0].socket, keys, patience); err != nil {
		r.Error(err)
	}
	var names []string
	for _, p := range r.pods {
		names = append(names, p.name)
	}
	if left, err := check.Orphans(context.Background(), stored.Postgres(r.url), names, patience); err != nil || len(left) > 0 {
		r.Errorf("%v %v", left, err)
	}
}

// over is in an answer that took so long on a busy machine that a lock of half a second had ended: the store was
// there.
const over = "the grant was over when the store's answer came"

// uninterrupted: no client of a running sidecar got the answer that the store is away, also during a migration.
func (r *rolling) uninterrupted(ops []history.Op) {
	told, slow := r.interrupted(ops)
	if len(slow) > 0 {
		r.Logf("%d calls were told that the store is away while the machine was slow; the first: %+v", len(slow), slow[0])
	}
	if len(told) > 0 {
		r.Errorf("%d calls were told that the store is away; the first, in which the machine may have delayed an answer by %s: %+v", len(told), r.slowness(told[0]), told[0])
	}
}

// interrupted are the calls that were told that the store is away, though their sidecar was not replaced then; slow those of which the machine alone may have
// taken all the time that the store has for an answer.
func (r *rolling) interrupted(ops []history.Op) (told, slow []history.Op) {
	for _, op := range ops {
		switch {
		case !strings.Contains(op.Note, "store_unavailable") || strings.Contains(op.Note, over) || r.replaced(op):
		case r.slowness(op) >= storeTimeout:
			slow = append(slow, op)
		default:
			told = append(told, op)
		}
	}
	return told, slow
}

// slownessOf is the slowness of a machine by a meter.
func slownessOf(m *pace.Meter) func(history.Op) time.Duration {
	return func(op history.Op) time.Duration {
		now, at := time.Now(), history.Now()
		return m.Slowness(now.Add(time.Duration(op.Call-at)), now.Add(time.Duration(op.Return-at)))
	}
}

// TestInterrupted: a call that was told that the store is away is excused only by what happened while it ran.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	const second = int64(time.Second)
	r := &rolling{T: t, away: []absence{{pod: 1, from: 10 * second, to: 12 * second}}, slowness: func(op history.Op) time.Duration {
		return map[string]time.Duration{"slow": storeTimeout, "nearly slow": storeTimeout - 1}[op.ID]
	}}
	told, slow := r.interrupted([]history.Op{
		{ID: "before", Sidecar: 1, Call: 8 * second, Return: 9 * second, Note: "503 store_unavailable"},
		{ID: "replaced", Sidecar: 1, Call: 9 * second, Return: 11 * second, Note: "503 store_unavailable"},
		{ID: "another sidecar", Sidecar: 0, Call: 9 * second, Return: 11 * second, Note: "503 store_unavailable"},
		{ID: "slow", Call: second, Return: 4 * second, Note: "503 store_unavailable"},
		{ID: "nearly slow", Call: second, Return: 4 * second, Note: "503 store_unavailable"},
		{ID: "over", Call: second, Return: 4 * second, Note: "503 store_unavailable: " + over},
		{ID: "another answer", Call: second, Return: 4 * second, Note: "503 draining"},
	})
	ids := func(ops []history.Op) (all []string) {
		for _, op := range ops {
			all = append(all, op.ID)
		}
		return all
	}
	if got := ids(told); !slices.Equal(got, []string{"before", "another sidecar", "nearly slow"}) {
		t.Errorf("told: %q", got)
	}
	if got := ids(slow); !slices.Equal(got, []string{"slow"}) {
		t.Errorf("slow: %q", got)
	}
}

// replaced reports whether an operation was with a sidecar that was being replaced.
func (r *rolling) replaced(op history.Op) bool {
	return slices.ContainsFunc(r.away, func(a absence) bool {
		return a.pod == op.Sidecar && op.Call < a.to && op.Return > a.from
	})
}

// keep leaves a history for people.
func (r *rolling) keep(ops []history.Op, rules check.Rules, report check.Report) string {
	folder, err := os.MkdirTemp("", "upgrade-")
	if err != nil {
		r.Fatal(err)
	}
	for name, write := range map[string]func(f *os.File) error{
		"history.jsonl": func(f *os.File) error { return history.WriteAll(f, ops) },
		"history.html":  func(f *os.File) error { return check.HTML(f, ops, rules, report.Violations) },
	} {
		f, err := os.Create(filepath.Join(folder, name))
		if err != nil {
			r.Fatal(err)
		}
		if err := errors.Join(write(f), f.Close()); err != nil {
			r.Error(err)
		}
	}
	return folder
}
