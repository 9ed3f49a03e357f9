package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/load"
)

// order is what a load process is to do.
type order struct {
	// What is the name of an operation.
	What string `json:"what"`
	// Sockets are the servers', which the connections are dealt out to in turn.
	Sockets     []string `json:"sockets"`
	Connections int      `json:"connections"`
}

// serveLoad is the load process: it loads what the order says.
func serveLoad(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	prepare, ok := operations[o.What]
	if !ok {
		return fmt.Errorf("load: there is no operation %q", o.What)
	}
	podCount = len(o.Sockets)
	conns, err := dialMany(o.Sockets, o.Connections)
	defer closeAll(conns)
	if err != nil {
		return err
	}
	workers := make([]func() error, len(conns))
	for i, c := range conns {
		if workers[i], err = prepare(c, i); err != nil {
			return fmt.Errorf("load: %w", err)
		}
	}
	return load.Serve(os.Stdin, os.Stdout, workers)
}

// loader is a load process that is ready.
type loader struct {
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
	stop  func()
}

// loader starts the bench as a load process.
func (b *bench) loader(what string, connections int, servers ...*process) (*loader, error) {
	o := order{What: what, Connections: connections}
	for _, s := range servers {
		o.Sockets = append(o.Sockets, s.socket)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return b.loadBy(exec.Command(self, "load", string(text)))
}

// loadBy starts a load process and returns when it is ready.
func (b *bench) loadBy(cmd *exec.Cmd) (*loader, error) {
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	interrupted := context.AfterFunc(b.ctx, func() { _ = cmd.Process.Kill() })
	l := &loader{cmd: cmd, in: in, lines: bufio.NewScanner(out), stop: func() {
		_ = in.Close()
		_ = cmd.Wait()
		interrupted()
	}}
	if !l.lines.Scan() || l.lines.Text() != load.Ready {
		l.stop()
		return nil, fmt.Errorf("the load process %s did not become ready", cmd.Args)
	}
	return l, nil
}

// run is one run of a load.
type run struct {
	load.Result
	// server is the processor time that the servers used meanwhile.
	server time.Duration
}

// run loads for a time, and returns that and what the servers used meanwhile.
func (l *loader) run(length time.Duration, servers ...*process) (run, error) {
	before, err := cpuOf(servers)
	if err != nil {
		return run{}, err
	}
	if _, err := fmt.Fprintln(l.in, length.Nanoseconds()); err != nil {
		return run{}, err
	}
	if !l.lines.Scan() {
		return run{}, fmt.Errorf("the load process %s ended", l.cmd.Args)
	}
	after, err := cpuOf(servers)
	if err != nil {
		return run{}, err
	}
	r := run{server: after - before}
	if err := json.Unmarshal(l.lines.Bytes(), &r.Result); err != nil {
		return run{}, fmt.Errorf("the load process %s: %w", l.cmd.Args, err)
	}
	return r, nil
}

// once is a run of a load process that is started for it.
func (b *bench) once(what string, connections int, servers ...*process) (run, error) {
	l, err := b.loader(what, connections, servers...)
	return b.runOnce(l, err, servers)
}

// runOnce runs a load process that has just started, unless it failed, and stops it.
func (b *bench) runOnce(l *loader, err error, servers []*process) (run, error) {
	if err != nil {
		return run{}, err
	}
	defer l.stop()
	return l.run(b.length, servers...)
}

func cpuOf(servers []*process) (sum time.Duration, err error) {
	for _, s := range servers {
		used, err := s.cpu()
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// dividedBy is the run as one of single requests, of which an operation has n.
func (r run) dividedBy(n int64) run {
	r.Operations *= n
	r.Median, r.P99 = r.Median/time.Duration(n), r.P99/time.Duration(n)
	return r
}

// rate is operations a second.
func (r run) rate() float64 { return float64(r.Operations) / r.Elapsed.Seconds() }

// each divides a time by the operations: microseconds.
func (r run) each(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1000 / float64(max(r.Operations, 1))
}

// runs are those of several rounds.
type runs []run

// of is a figure of each.
func (r runs) of(figure func(run) float64) []float64 {
	out := make([]float64, len(r))
	for i := range r {
		out[i] = figure(r[i])
	}
	return out
}

func (r runs) rates() []float64 { return r.of(run.rate) }

// medians are those of the operations, in microseconds.
func (r runs) medians() []float64 {
	return r.of(func(r run) float64 { return float64(r.Median.Nanoseconds()) / 1000 })
}

// costs are the servers' processor time an operation, in microseconds.
func (r runs) costs() []float64 { return r.of(func(r run) float64 { return r.each(r.server) }) }

// loads are what the load itself used.
func (r runs) loads() []float64 { return r.of(func(r run) float64 { return r.each(r.CPU) }) }

// cost says what an operation costs the processor.
func (r runs) cost() string {
	return fmt.Sprintf("%.1f µs of processor time each (the load's own: %.1f µs)", median(r.costs()), median(r.loads()))
}
