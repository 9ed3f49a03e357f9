package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"
)

// overhead measures what being observed costs on P1: this sidecar with tracing off,
// as it comes, and with every call traced, and with its figures read each second,
// in turns; and where -against names one, the sidecar of an older revision.
func (b *bench) overhead() ([]result, error) {
	// Two of a hundred are asked for, and rounds differ by more: many short ones.
	const connections, goal, slices = 64, 0.98, 4
	more := 2
	if b.against != "" { // what is compared with a goal
		more = 8
	}
	collector, err := collect()
	if err != nil {
		return nil, err
	}
	defer collector.close()
	kinds := []observed{{name: "off", what: "tracing off"}}
	if b.against != "" {
		kinds = append(kinds, observed{name: "older", what: "before it was there: " + b.against})
	}
	kinds = append(kinds,
		observed{name: "scraped", what: "tracing off, figures read each second", scraped: true},
		observed{name: "sampled", what: "1 call of 100 traced", env: append(collector.env(), "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01")},
		observed{name: "traced", what: "every call traced", env: collector.env()})
	defer func() {
		for _, k := range kinds {
			if k.loader != nil {
				k.loader.stop()
			}
			if k.process != nil {
				k.process.stop()
			}
		}
	}()
	for i := range kinds {
		if err := b.startObserved(&kinds[i], connections); err != nil {
			return nil, err
		}
	}
	short := *b
	short.length /= slices
	for round := range b.rounds * more {
		for i := range kinds {
			k := &kinds[(i+round)%len(kinds)] // nobody is always the first
			p, err := k.measure(&short)
			if err != nil {
				return nil, err
			}
			k.runs = append(k.runs, p)
		}
	}
	for _, k := range kinds {
		b.log.Printf("overhead, %s: %.0f pairs/s, %.1f us of processor time each", k.what, k.rates(), k.costs())
	}
	b.log.Printf("overhead: the collector took %d bytes", collector.bytes.Load())
	return overheadRows(kinds, goal), nil
}

// overheadRows compares each kind with tracing off, which the older one is compared to.
func overheadRows(kinds []observed, goal float64) (rows []result) {
	off := kinds[0].rates()
	for i := range kinds[1:] {
		k := &kinds[i+1]
		share := median(ratios(k.rates(), off))
		r := result{id: "overhead", what: "P1 with " + k.what, figure: k.figure(), peer: "off: " + kinds[0].figure(), ratio: fmt.Sprintf("%.3f of off", share), score: share, goal: "–", reached: true}
		if k.name == "older" {
			ratio := median(ratios(off, k.rates()))
			r.what, r.figure, r.peer = "P1 with tracing off", kinds[0].figure(), k.what+": "+k.figure()
			r.ratio, r.score, r.goal, r.reached = fmt.Sprintf("%.3f of before", ratio), ratio, fmt.Sprintf("at least %.2f", goal), ratio >= goal
		}
		rows = append(rows, r)
	}
	return rows
}

// ratios divides figures of the same rounds.
func ratios(of, by []float64) []float64 {
	out := make([]float64, len(of))
	for i := range of {
		out[i] = of[i] / by[i]
	}
	return out
}

// observed is a sidecar that is observed in one way.
type observed struct {
	name, what string
	env        []string
	scraped    bool
	process    *process
	loader     *loader
	runs
}

// figure is what is shown of it.
func (k *observed) figure() string {
	return fmt.Sprintf("%.0f pairs/s, %s", median(k.rates()), k.cost())
}

func (b *bench) startObserved(k *observed, connections int) (err error) {
	binary := b.binary
	if k.name == "older" {
		if binary, err = b.buildOlder(); err != nil {
			return err
		}
	}
	if k.process, err = b.sidecarOf(binary, k.name, k.env, "STORE_URL=memory://"); err != nil {
		return err
	}
	k.loader, err = b.loader("pair", connections, k.process)
	return err
}

// measure measures P1, with the figures read meanwhile if they are to be.
func (k *observed) measure(b *bench) (run, error) {
	stop := make(chan struct{})
	defer close(stop)
	if k.scraped {
		c, err := dial(k.process.socket)
		if err != nil {
			return run{}, err
		}
		go func() {
			defer c.close()
			for tick := time.NewTicker(time.Second); ; {
				_ = c.roundTrip([]byte("GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n"))
				select {
				case <-tick.C:
				case <-stop:
					tick.Stop()
					return
				}
			}
		}()
	}
	return k.loader.run(b.length, k.process)
}

// buildOlder builds the sidecar of the revision that -against names.
func (b *bench) buildOlder() (string, error) {
	tree, binary := filepath.Join(b.folder, "older"), filepath.Join(b.folder, "older-locksidecar")
	if out, err := exec.CommandContext(b.ctx, "git", "worktree", "add", "--detach", tree, b.against).CombinedOutput(); err != nil {
		return "", fmt.Errorf("-against %s: %w\n%s", b.against, err, out)
	}
	defer func() {
		_ = exec.CommandContext(context.WithoutCancel(b.ctx), "git", "worktree", "remove", "--force", tree).Run()
	}()
	return binary, b.buildIn(tree, binary, "cmd/locksidecar")
}

// collector takes OTLP over HTTP and forgets it.
type collector struct {
	listener net.Listener
	bytes    atomic.Int64
}

func collect() (*collector, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &collector{listener: listener}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			c.bytes.Add(n)
		}))
	}()
	return c, nil
}

func (c *collector) env() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + c.listener.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "PATH=" + os.Getenv("PATH")}
}

func (c *collector) close() { _ = c.listener.Close() }
