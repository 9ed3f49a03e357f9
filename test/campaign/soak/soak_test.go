package soak

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/wire"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/load"
	"github.com/locksidecar/locksidecar/test/campaign/measure"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var (
	binary  = flag.String("binary", "", "the sidecar as it is released; without it there is no soak")
	length  = flag.Duration("length", 30*time.Minute, "for how long")
	results = flag.String("results", "", "the file that keeps what was seen")
)

const (
	sidecars, clients, keys = 2, 16, 64

	ttl = 2 * time.Second
	// round is how long clients stay; then others come.
	round = time.Minute
	every = 5 * time.Second
	// Beside them, steady clients acquire and release a lock of their own each, with a pause.
	steady = 4
	pause  = 15 * time.Millisecond

	// leastGrants is how many there are at least in a second, on each database.
	leastGrants = 10
	// leastHot is the part of all updates that must not touch an index.
	leastHot = 0.95
	// tidying is how long the server has to remove dead versions when nobody can see them:
	// it looks once a minute whether there is something to do.
	tidying = 3 * time.Minute
)

func TestSoak(t *testing.T) {
	if *binary == "" {
		t.Fatal("-binary is missing: test/campaign/run.sh soak runs this; it takes half an hour")
	}
	logs, err := os.MkdirTemp("", "soak-")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("%s; the samples are in %s\n", *length, logs)
	cluster := pgtest.Start(t)
	var wg sync.WaitGroup
	var soaks []*soak
	for _, open := range []bool{false, true} {
		s := newSoak(t, cluster.NewDatabase(t), logs, open)
		soaks = append(soaks, s)
		wg.Go(func() {
			if err := s.run(t.Context()); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		})
	}
	wg.Wait()
	var all strings.Builder
	for _, s := range soaks {
		all.WriteString(s.report.String())
	}
	fmt.Print(all.String())
	if err := measure.Keep(*results, head, all.String()); err != nil {
		t.Error(err)
	}
}

const head = "# A soak\n\nWritten by `test/campaign/run.sh soak`; what that does stands in [doc.go](doc.go).\n"

// soak is a database, its sidecars and their clients.
type soak struct {
	name     string
	logs     string
	open     bool // with a transaction that stays so
	database database
	sidecars []*world.Sidecar
	figures  []*wire.Conn
	fence    *load.Fence
	began    time.Time
	samples  []sample
	after    string          // what became of the open transaction's dead rows
	report   strings.Builder // what was seen

	mu    sync.Mutex
	pairs measure.Times // since the last sample
}

func newSoak(t *testing.T, url, logs string, open bool) *soak {
	t.Helper()
	s := &soak{name: "alone", open: open, database: database{url: url}}
	if open {
		s.name = "with an open transaction"
	}
	s.logs = filepath.Join(logs, strings.ReplaceAll(s.name, " ", "-"))
	if err := os.Mkdir(s.logs, 0o755); err != nil {
		t.Fatal(err)
	}
	config := world.Config{Folder: world.Folder(t), Logs: s.logs, Binary: *binary, Settings: map[string]string{
		"TTL": ttl.String(), "ALLOW_FORCE": "true", "LOG_LEVEL": "error",
	}}
	for i := range sidecars {
		sidecar := world.Serve(t, config, i, url)
		conn, err := wire.Dial(sidecar.Socket())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		s.sidecars, s.figures = append(s.sidecars, sidecar), append(s.figures, conn)
	}
	var err error
	if s.fence, err = load.OpenFence(filepath.Join(config.Folder, "fence"), keys); err != nil {
		t.Fatal(err)
	}
	if s.database.conn, err = connect(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *soak) run(ctx context.Context) error {
	over, cancel := context.WithTimeout(ctx, *length)
	defer cancel()
	end := func() error { return nil }
	if s.open {
		var err error
		if end, err = s.database.snapshot(ctx); err != nil {
			return err
		}
	}
	loading, stop := context.WithCancel(ctx)
	defer stop()
	loaded := make(chan error, 1)
	go func() { loaded <- s.load(loading) }()
	errs := []error{s.sample(over, ctx)}
	if s.open {
		errs = append(errs, end(), s.tidies(ctx))
	}
	stop()
	return errors.Join(append(errs, <-loaded, s.judge())...)
}

// load lets clients come and go until ctx ends, and the steady ones stay.
func (s *soak) load(ctx context.Context) error {
	var sockets []string
	for _, sidecar := range s.sidecars {
		sockets = append(sockets, sidecar.Socket())
	}
	var stay sync.WaitGroup
	stayed := make([]error, steady)
	for i := range steady {
		stay.Go(func() {
			stayed[i] = measure.Pairs(ctx, sockets[i%sidecars], fmt.Sprintf("steady:%d", i), pause, func(took time.Duration) {
				s.mu.Lock()
				s.pairs = append(s.pairs, took)
				s.mu.Unlock()
			})
		})
	}
	var errs []error
	for n := uint64(1); ctx.Err() == nil; n++ {
		once, cancel := context.WithTimeout(ctx, round)
		err := load.Run(once, load.Config{
			Sockets: sockets, Clients: clients, Keys: keys, Seed: n, TTL: ttl, Force: true, Fence: s.fence,
			Recorder: history.NewRecorder(fmt.Sprintf("soak-%d", n), nil), // forgotten with the round
		})
		cancel()
		errs = append(errs, err)
	}
	stay.Wait()
	return errors.Join(append(errs, stayed...)...)
}

// sample reads the figures again and again, until over ends.
func (s *soak) sample(over, ctx context.Context) (err error) {
	out, err := create(filepath.Join(s.logs, "samples.csv"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	for s.began = time.Now(); over.Err() == nil; rest(over, time.Until(s.began.Add(time.Duration(len(s.samples))*every))) {
		f, err := s.read(ctx)
		if err != nil {
			return err
		}
		one := sample{at: time.Since(s.began), figures: f}
		if err := out.add(one); err != nil {
			return err
		}
		s.samples = append(s.samples, one)
	}
	return nil
}

func (s *soak) read(ctx context.Context) (map[string]float64, error) {
	f := make(map[string]float64)
	for i, conn := range s.figures {
		now, err := measure.FiguresOf(conn)
		if err != nil {
			return nil, err
		}
		f[memory] += float64(status(s.sidecars[i].Pid(), "VmRSS"))
		f[descriptors] += now["process_open_fds"]
		f[goroutines] += now["go_goroutines"]
		f[heap] += now["go_memstats_heap_alloc_bytes"]
		f[granted] += now.Sum("locksidecar_acquires_total", `result="granted"`)
	}
	f[pair] = float64(s.lately().Quantile(0.5))
	return f, s.database.read(ctx, f)
}

// lately is how long the steady clients' pairs took since it was asked last.
func (s *soak) lately() measure.Times {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := s.pairs
	s.pairs = nil
	return times
}

// tidies checks that the transaction leaves nothing behind.
func (s *soak) tidies(ctx context.Context) error {
	before := s.samples[len(s.samples)-1].figures
	took, dead, err := s.database.forgets(ctx, before[deadRows]/10, tidying)
	s.after = fmt.Sprintf("Of %.0f dead rows %.0f are left %s after the transaction's end.", before[deadRows], dead, took.Round(time.Second))
	if err == nil && dead > before[deadRows]/10 {
		err = fmt.Errorf("%.0f dead rows are left %s after the transaction's end", dead, took)
	}
	s.lately()
	rest(ctx, every)
	s.after += fmt.Sprintf(" Then a pair takes %s, before %s.\n", s.lately().Quantile(0.5), time.Duration(before[pair]))
	return err
}

// judge prints the table, and fails where something grows or too little happened.
func (s *soak) judge() error {
	all, err := judge(s.samples, rulesOf(s.open))
	if err != nil {
		return err
	}
	half, last := s.samples[len(s.samples)/2], s.samples[len(s.samples)-1]
	rise := func(figure string) float64 { return last.figures[figure] - half.figures[figure] }
	seconds := (last.at - half.at).Seconds()
	hot, grants := rise(hotUpdated)/rise(updated), rise(granted)/seconds
	fmt.Fprintf(&s.report, "\n## A database %s, %s\n\nIn the second half, which is judged: %.0f grants and %.0f updates a second, %.3f of them HOT; "+
		"the tables grew by %.1f bytes for each update. %s\n",
		s.name, last.at.Round(time.Second), grants, rise(updated)/seconds, hot, (rise(tableBytes)+rise(indexBytes))/rise(updated), s.after)
	write(&s.report, all)
	fmt.Fprintln(&s.report)
	writeSamples(&s.report, s.samples)
	var errs []error
	for _, j := range all {
		if j.failed {
			errs = append(errs, fmt.Errorf("%s: rises by %.2f %s, more than %.2f", j.figure, j.growth, j.unit, j.slack))
		}
	}
	if !s.open && hot < leastHot {
		errs = append(errs, fmt.Errorf("only %.3f of the updates were HOT", hot))
	}
	if grants < leastGrants {
		errs = append(errs, fmt.Errorf("only %.1f grants a second: an idle run proves nothing", grants))
	}
	return errors.Join(errs...)
}
