package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// overhead measures what being observed costs on P1: this sidecar with tracing off, with its figures read each
// second, and with traces that the sidecar or the app samples, in turns; and where -against names one, the sidecar
// of an older revision.
func (b *bench) overhead() ([]result, error) {
	// Two of a hundred are asked for, and rounds differ by more: many short ones.
	const connections, parts = 64, 4
	more := 2
	if b.against != "" {
		more = 8
	}
	collector, err := collect()
	if err != nil {
		return nil, err
	}
	defer collector.close()
	kinds := observedKinds(b.against)
	stop := sync.OnceFunc(func() {
		for _, k := range kinds {
			if k.loader != nil {
				k.loader.stop()
			}
			if k.process != nil {
				k.process.stop()
			}
		}
	})
	defer stop()
	for _, k := range kinds {
		if k.traced {
			k.env = append(k.env, collector.env(k.name)...)
		}
		if err := b.startObserved(k, connections); err != nil {
			return nil, err
		}
	}
	short := *b
	short.length /= parts
	for round := range b.rounds * more {
		for i := range kinds {
			k := kinds[(i+round)%len(kinds)] // nobody is always the first
			p, err := k.measure(&short)
			if err != nil {
				return nil, err
			}
			k.runs = append(k.runs, p)
		}
	}
	stop() // which sends the last spans
	for _, k := range kinds {
		k.spans = collector.of(k.name).Load()
		b.log.Printf("overhead, %s: %.0f pairs/s, %.1f us of processor time each, %.3f spans taken for each", k.what, median(k.rates()), median(k.costs()), k.spansEach())
	}
	return overheadRows(kinds), nil
}

// observedKinds are the ways to be observed that are measured. The first two are what the others are compared with.
func observedKinds(against string) []*observed {
	const few, all = 0.97, 0.6 // goals: 1 of 100 traced, every call
	hundredth := []string{"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.01"}
	off := &observed{name: "off", what: "tracing off", operation: "pair"}
	headers := &observed{name: "headers", what: "tracing off; apps send traceparent", operation: "hundredth"}
	kinds := []*observed{off, headers}
	if against != "" {
		kinds = append(kinds, &observed{name: "older", what: "before it was there: " + against, operation: "pair", peer: off})
	}
	return append(kinds,
		&observed{name: "scraped", what: "tracing off, figures read each second", operation: "pair", peer: off, scraped: true},
		&observed{name: "few", what: "1 call of 100 traced; apps send no traceparent", operation: "pair", peer: off, goal: few, traced: true, env: hundredth},
		&observed{name: "all", what: "every call traced; apps send no traceparent", operation: "pair", peer: off, goal: all, traced: true},
		&observed{name: "none-sampled", what: "traces on; apps send traceparent, and sample none", operation: "unsampled", peer: headers, goal: few, traced: true},
		&observed{name: "few-sampled", what: "traces on; apps send traceparent, and sample 1 of 100", operation: "hundredth", peer: headers, goal: few, traced: true},
		&observed{name: "all-sampled", what: "traces on; apps send traceparent, and sample all", operation: "sampled", peer: headers, goal: all, traced: true})
}

// overheadRows compares each kind with its peer, and tracing off with the older one.
func overheadRows(kinds []*observed) (rows []result) {
	for _, k := range kinds {
		if k.peer == nil {
			continue
		}
		share, goal := median(ratios(k.rates(), k.peer.rates())), "–"
		if k.goal > 0 {
			goal = fmt.Sprintf("at least %.2f", k.goal)
		}
		r := result{id: "overhead", what: "P1, " + k.what, figure: k.figure(), peer: k.peer.what + ": " + k.peer.figure(), ratio: fmt.Sprintf("%.3f", share), score: share, goal: goal, reached: share >= k.goal}
		if k.name == "older" {
			const goal = 0.98
			ratio := median(ratios(k.peer.rates(), k.rates()))
			r.what, r.figure, r.peer = "P1, tracing off", k.peer.figure(), k.what+": "+k.figure()
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
	// operation is the load's: with or without headers of traces.
	operation string
	peer      *observed // nil: it is only compared with
	goal      float64   // of the peer's rate; 0: none
	traced    bool
	env       []string
	scraped   bool
	process   *process
	loader    *loader
	spans     int64 // that the collector took
	runs
}

// figure is what is shown of it.
func (k *observed) figure() string {
	text := fmt.Sprintf("%.0f pairs/s, %s", median(k.rates()), k.cost())
	if k.spans > 0 {
		text += fmt.Sprintf(", %.2f spans taken for each", k.spansEach())
	}
	return text
}

func (k *observed) spansEach() float64 {
	pairs := int64(0)
	for _, r := range k.runs {
		pairs += r.Operations
	}
	return float64(k.spans) / float64(max(pairs, 1))
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
	k.loader, err = b.loader(k.operation, connections, k.process)
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

// collector takes OTLP over HTTP, counts the spans and forgets them.
type collector struct {
	listener net.Listener
	spans    sync.Map // by who sent them: *atomic.Int64
}

func collect() (*collector, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &collector{listener: listener}
	buffers := sync.Pool{New: func() any { return new(bytes.Buffer) }}
	go func() {
		_ = http.Serve(listener, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body := buffers.Get().(*bytes.Buffer)
			body.Reset()
			_, _ = body.ReadFrom(r.Body)
			// A request has resources (field 1), these have scopes (2), and these have spans (2).
			name, _, _ := strings.Cut(r.URL.Path[1:], "/")
			c.of(name).Add(count(body.Bytes(), 1, 2, 2))
			buffers.Put(body)
		}))
	}()
	return c, nil
}

// count counts the messages on a path of fields. It skips their content, because decoding would cost as much as the
// sidecar's encoding, on the same cores.
func count(message []byte, path ...protowire.Number) (n int64) {
	if len(path) == 0 {
		return 1
	}
	for len(message) > 0 {
		field, kind, tag := protowire.ConsumeTag(message)
		if tag < 0 {
			return n
		}
		length := protowire.ConsumeFieldValue(field, kind, message[tag:])
		if length < 0 {
			return n
		}
		if field == path[0] && kind == protowire.BytesType {
			inner, _ := protowire.ConsumeBytes(message[tag:])
			n += count(inner, path[1:]...)
		}
		message = message[tag+length:]
	}
	return n
}

// of counts the spans of a sidecar.
func (c *collector) of(name string) *atomic.Int64 {
	n, _ := c.spans.LoadOrStore(name, new(atomic.Int64))
	return n.(*atomic.Int64)
}

// env makes a sidecar send its spans.
func (c *collector) env(name string) []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + c.listener.Addr().String() + "/" + name, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "PATH=" + os.Getenv("PATH")}
}

func (c *collector) close() { _ = c.listener.Close() }
