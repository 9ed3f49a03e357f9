package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

const (
	fleetKeep     = 200 * time.Millisecond
	fleetWindow   = 20 * time.Second // four renewal intervals
	fleetKeeping  = 5 * time.Second
	fleetHandOffs = 200
	fleetDeploy   = 30 * time.Second
	fleetPatience = 4 * time.Minute // of a stage
	fleetPermits  = 16
)

// stages are what a fleet does, in this order. README.md says what each is.
var stages = []struct {
	name string
	do   func(*cores) (*stage, error)
}{
	{"start", (*cores).begin},
	{"hold", (*cores).hold},
	{"kept keys", (*cores).keep},
	{"hand-offs", (*cores).handOff},
	{"deploy", (*cores).deploy},
	{"failover", (*cores).failOver},
	{"midnight, a key", (*cores).midnight},
	{"midnight, permits", (*cores).midnightPermits},
}

// stage is what one of them took.
type stage struct {
	outcome
	name        string
	sidecars    int
	operations  int
	took        time.Duration
	server, own time.Duration // processor time: of the server, of all sidecars
	requests    int64
	connections int64
	listeners   int64
	lost        int64
	net         bool // what the renewals cost meanwhile is taken off
}

// cores is a fleet in this process.
type cores struct {
	b      *bench
	server *storeServer
	n      int
	all    []*core
	lost   atomic.Int64
	// space, if not nil, is the one of which all are views, and beat is what their renewals share.
	space store.Space
	beat  *lease.Beat
	// idle is what renewals cost in a second.
	idle struct{ requests, server, own float64 }
}

// each does something for all, so many at a time.
func (f *cores) each(atOnce int, do func(i int) (time.Duration, error)) *outcome {
	o := &outcome{}
	next := make(chan int)
	var work sync.WaitGroup
	for range min(atOnce, f.n) {
		work.Go(func() {
			for i := range next {
				o.note(do(i))
			}
		})
	}
	for i := range f.n {
		next <- i
	}
	close(next)
	work.Wait()
	return o
}

// measure counts what something costs.
func (f *cores) measure(name string, net bool, do func(ctx context.Context) (*outcome, int)) (*stage, error) {
	ctx, cancel := context.WithTimeout(f.b.ctx, fleetPatience)
	defer cancel()
	runtime.GC()
	before, err := f.server.counts()
	if err != nil {
		return nil, err
	}
	cpu, err := f.server.cpu()
	if err != nil {
		return nil, err
	}
	own, began := ownTime(), time.Now()
	lost := f.lost.Load()
	o, operations := do(ctx)
	s := &stage{name: name, sidecars: f.n, operations: operations, took: time.Since(began), own: ownTime() - own, net: net, lost: f.lost.Load() - lost}
	s.times, s.errors = o.times, o.errors
	used, err := f.server.cpu()
	if err != nil {
		return nil, err
	}
	s.server = used - cpu
	after, err := f.server.counts()
	if err != nil {
		return nil, err
	}
	s.requests, s.connections, s.listeners = after.requests-before.requests, after.connections, after.listeners
	if after.requests < before.requests { // it began to count anew
		s.requests = after.requests
	}
	if net {
		sec := s.took.Seconds()
		s.requests -= int64(f.idle.requests * sec)
		s.server -= time.Duration(f.idle.server * sec * float64(time.Second))
		s.own -= time.Duration(f.idle.own * sec * float64(time.Second))
	}
	f.b.log.Printf("fleet: %s, %d sidecars, %s", f.server.name, f.n, s.line())
	for text, n := range s.errors {
		f.b.log.Printf("fleet: %d times: %s", n, text)
	}
	return s, nil
}

// ownTime is the processor time of this process.
func ownTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (f *cores) begin() (*stage, error) {
	f.all = make([]*core, f.n)
	first := func(ctx context.Context, i int) (err error) {
		if f.all[i], err = f.startOne(ctx, i); err != nil {
			return err
		}
		f.all[i].own, err = f.all[i].takes(ctx, lease.Request{Key: podKey(i)})
		return err
	}
	s, err := f.measure("start", false, func(ctx context.Context) (*outcome, int) {
		return f.each(16, func(i int) (time.Duration, error) {
			began := time.Now()
			err := first(ctx, i)
			return time.Since(began), err
		}), f.n
	})
	if err == nil && slices.Contains(f.all, nil) {
		err = fmt.Errorf("some sidecars did not start: %v", s.errors)
	}
	return s, err
}

// startOne starts a sidecar, with a space of its own unless all share one.
func (f *cores) startOne(ctx context.Context, i int) (*core, error) {
	return startCore(ctx, place{url: f.server.url, shared: f.space, beat: f.beat}, i, fleetKeep, &f.lost)
}

func podKey(i int) string { return fmt.Sprintf("pod:%d", i) }

func (f *cores) hold() (*stage, error) {
	const interval = 5 * time.Second
	s, err := f.measure("hold", false, func(context.Context) (*outcome, int) {
		_ = f.b.rest(fleetWindow)
		return &outcome{}, f.n * int(fleetWindow/interval)
	})
	if err == nil {
		sec := s.took.Seconds()
		f.idle.requests, f.idle.server, f.idle.own = float64(s.requests)/sec, s.server.Seconds()/sec, s.own.Seconds()/sec
	}
	return s, err
}

func (f *cores) keep() (*stage, error) {
	return f.measure("kept keys", true, func(ctx context.Context) (*outcome, int) {
		o := &outcome{}
		var work sync.WaitGroup
		for i, c := range f.all {
			work.Go(func() {
				const pause = 100 * time.Millisecond
				time.Sleep(pause * time.Duration(i) / time.Duration(f.n))
				tick := time.NewTicker(pause)
				defer tick.Stop()
				for began := time.Now(); time.Since(began) < fleetKeeping; <-tick.C {
					o.note(c.pair(ctx, lease.Request{Key: fmt.Sprintf("work:%d", i)}))
				}
			})
		}
		work.Wait()
		return o, len(o.times)
	})
}

func (f *cores) handOff() (*stage, error) {
	return f.measure("hand-offs", true, func(ctx context.Context) (*outcome, int) {
		o := &outcome{}
		now, err := f.all[0].takes(ctx, lease.Request{Key: "baton"})
		if err != nil {
			o.note(0, err)
			return o, 1
		}
		for i := range fleetHandOffs {
			from, to := f.all[i%f.n], f.all[(i+1)%f.n]
			next := make(chan error, 1)
			var grant lease.Grant
			var at time.Time
			go func() {
				var err error
				grant, err = to.takes(ctx, lease.Request{Key: "baton"})
				at = time.Now()
				next <- err
			}()
			time.Sleep(20 * time.Millisecond) // it is in the queue then
			began := time.Now()
			err := from.gives(ctx, now)
			if err = errors.Join(err, <-next); err != nil {
				o.note(0, err)
				return o, i + 1
			}
			o.note(at.Sub(began), nil)
			now = grant
		}
		o.note(0, f.all[fleetHandOffs%f.n].gives(ctx, now))
		o.times = o.times[:min(len(o.times), fleetHandOffs)]
		return o, fleetHandOffs
	})
}

func (f *cores) deploy() (*stage, error) {
	return f.measure("deploy", true, func(ctx context.Context) (*outcome, int) {
		began := time.Now()
		return f.each(f.n, func(i int) (time.Duration, error) {
			time.Sleep(time.Until(began.Add(fleetDeploy * time.Duration(i) / time.Duration(f.n))))
			from := time.Now()
			f.all[i].stop()
			c, err := f.startOne(ctx, i)
			if err != nil {
				return 0, err
			}
			f.all[i] = c
			c.own, err = c.takes(ctx, lease.Request{Key: podKey(i)})
			return time.Since(from), err
		}), f.n
	})
}

func (f *cores) failOver() (*stage, error) {
	return f.measure("failover", false, func(ctx context.Context) (*outcome, int) {
		began := time.Now()
		broken := f.server.failOver()
		o := f.each(f.n, func(i int) (time.Duration, error) {
			for {
				_, err := f.all[i].pair(ctx, lease.Request{Key: fmt.Sprintf("after:%d", i)})
				if err == nil || ctx.Err() != nil {
					return time.Since(began), err
				}
				time.Sleep(50 * time.Millisecond) // as a client does
			}
		})
		if broken != nil {
			o.note(0, broken)
		}
		return o, f.n
	})
}

func (f *cores) midnight() (*stage, error) {
	return f.together("midnight, a key", lease.Request{Key: "midnight"})
}

func (f *cores) midnightPermits() (*stage, error) {
	return f.together("midnight, permits", lease.Request{Key: "permits", Shared: true, Limit: fleetPermits})
}

// together lets all want the same at once.
func (f *cores) together(name string, req lease.Request) (*stage, error) {
	return f.measure(name, true, func(ctx context.Context) (*outcome, int) {
		return f.each(f.n, func(i int) (time.Duration, error) { return f.all[i].pair(ctx, req) }), f.n
	})
}

func (f *cores) stop() {
	var work sync.WaitGroup
	for _, c := range f.all {
		if c != nil {
			work.Go(c.stop)
		}
	}
	work.Wait()
}

// per is a figure of each operation.
func (s *stage) per(total float64) float64 { return total / float64(max(s.operations, 1)) }

func (s *stage) line() string {
	return fmt.Sprintf("%s: %d operations in %.1f s, %d errors, %d locks lost, %s; server %.3f ms each, sidecars %.3f ms each, %.2f requests each; %d connections, %d listeners",
		s.name, s.operations, s.took.Seconds(), s.failed(), s.lost, s.waits(", "), s.per(milliseconds(s.server)), s.per(milliseconds(s.own)), s.per(float64(s.requests)), s.connections, s.listeners)
}

// waits are the median, p99 and longest of the times.
func (s *stage) waits(between string) string {
	if len(s.times) == 0 {
		return strings.Join([]string{"–", "–", "–"}, between)
	}
	all := []float64{median(s.times), p99(s.times), slices.Max(s.times)}
	var text []string
	for _, ms := range all {
		text = append(text, fmt.Sprintf("%.1f", ms))
	}
	return strings.Join(text, between)
}

// fleets measures the parts that are chosen, and writes a page for each.
func (b *bench) fleets() error {
	for _, part := range []struct {
		name    string
		measure func() (string, error)
	}{
		{"crowd", b.crowds},
		{"redis", func() (string, error) { return b.fleetOn((*bench).fleetRedis) }},
		{"etcd", func() (string, error) { return b.fleetOn((*bench).fleetEtcd) }},
		{"postgres", func() (string, error) { return b.fleetOn((*bench).fleetPostgres) }},
		{"views", func() (string, error) { return b.viewsOf((*bench).fleetPostgres) }},
	} {
		if !b.chosen(part.name) {
			continue
		}
		before := b.logged.Len()
		text, err := part.measure()
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Println(text)
		if !b.write {
			continue
		}
		head := fmt.Sprintf("# %s\n\nMeasured %s by `go run ./bench -fleet -write`; what was printed meanwhile is in [fleet-%s.log](fleet-%s.log).\n"+
			"How it is measured: [README.md](README.md#a-fleet-in-one-process).\n\nMachine: %s\n\n",
			fleetTitle, time.Now().UTC().Format("2006-01-02"), part.name, part.name, b.machine)
		if err := errors.Join(
			os.WriteFile("bench/fleet-"+part.name+".md", []byte(head+text), 0o644),
			os.WriteFile("bench/fleet-"+part.name+".log", []byte(b.logged.String()[before:]), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

const fleetTitle = "A fleet in one process"

// fleetOn measures fleets of each size, on a new server each.
func (b *bench) fleetOn(start func(*bench, int) (*storeServer, error)) (string, error) {
	rows := map[string][]*stage{}
	var server *storeServer
	for _, n := range b.upTo(10, 100, 1000) {
		var err error
		if server, err = b.oneFleet(n, start, rows); err != nil {
			return "", fmt.Errorf("%d sidecars: %w", n, err)
		}
	}
	return fleetText(server, rows), nil
}

func (b *bench) oneFleet(n int, start func(*bench, int) (*storeServer, error), rows map[string][]*stage) (*storeServer, error) {
	server, err := start(b, n)
	if err != nil {
		return nil, err
	}
	defer func() { server.stop() }()
	if _, err := server.counts(); err != nil {
		return nil, err
	}
	f := &cores{b: b, server: server, n: n}
	defer f.stop()
	for _, st := range stages {
		s, err := st.do(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", st.name, err)
		}
		rows[st.name] = append(rows[st.name], s)
	}
	return server, nil
}

// fleetText is the section of a server.
func fleetText(server *storeServer, rows map[string][]*stage) string {
	var t strings.Builder
	fmt.Fprintf(&t, "## %s\n\n", server.name)
	t.WriteString("| what | sidecars | operations | errors | lost | median (ms) | p99 | longest | all took (s) | server, ms each | beside 10 | sidecars, ms each | requests each | connections | listeners |\n|---|" +
		strings.Repeat("--:|", 14) + "\n")
	for _, st := range stages {
		for _, s := range rows[st.name] {
			beside := s.per(s.server.Seconds()) / rows[st.name][0].per(rows[st.name][0].server.Seconds())
			fmt.Fprintf(&t, "| %s | %d | %d | %d | %d | %s | %.1f | %.3f | %.1f | %.3f | %.2f | %d | %d |\n", st.name, s.sidecars, s.operations, s.failed(), s.lost, s.waits(" | "), s.took.Seconds(),
				s.per(milliseconds(s.server)), beside, s.per(milliseconds(s.own)), s.per(float64(s.requests)), s.connections, s.listeners)
		}
	}
	fmt.Fprintf(&t, "\nFailover: %s.\n", server.failure)
	return t.String()
}
