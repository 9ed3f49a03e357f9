package main

import (
	"errors"
	"fmt"
	"time"
)

// local is an answer that needs no SQL.
type local struct {
	operation, what string
	requests        int64 // of an operation
}

var locals = []local{
	{"get", "`GET` of my lock", 1},
	{"patch", "`PATCH` of a session lock", 1},
	{"reentry", "reentry, in and out", 2},
	{"denied", "cached refusal", 1},
}

// p4 measures the answers that need no SQL, in turns with an echo. The TTL and the
// cache's are so long that neither renewals nor the end of a refusal come between:
// exactly no statement may be executed.
func (b *bench) p4() ([]result, error) {
	const many = 64 // connections
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	settings := []string{"STORE_URL=" + url, "TTL=1h", "CACHE_TTL=1m"}
	sidecar, err := b.sidecar("p4", settings...)
	if err != nil {
		return nil, err
	}
	defer sidecar.stop()
	other, err := b.sidecar("p4other", settings...)
	if err != nil {
		return nil, err
	}
	defer other.stop()
	holder, err := dial(other.socket)
	if err != nil {
		return nil, err
	}
	defer holder.close()
	for i := range many {
		if _, err := holder.acquire(deniedKey(i), nil); err != nil {
			return nil, err
		}
	}
	echo, err := b.echo()
	if err != nil {
		return nil, err
	}
	defer echo.stop()
	counter, err := b.counter(url)
	if err != nil {
		return nil, err
	}
	defer counter.close()
	var rows []result
	for _, connections := range []int{many, 1} {
		more, err := b.p4At(connections, sidecar, echo, counter)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// p4At measures them at some connections, each in turns with an echo. One connection is
// measured on one core: which core wakes up takes longer than the answer, and is chosen by
// the kernel, for seconds or for as long as a process lives.
func (b *bench) p4At(connections int, sidecar, echo *process, counter *counter) (rows []result, err error) {
	t := turns{rounds: b.rounds, length: b.length / 6} // there are many
	core := ""
	if connections == 1 {
		t.rounds, t.length = 4*b.rounds, b.length/40
		core = firstCore()
	}
	if t.peer, err = b.loader("echo", connections, echo); err != nil {
		return nil, err
	}
	defer t.peer.stop()
	if err := errors.Join(keepOn(core, sidecar.cmd), keepOn(core, echo.cmd), keepOn(core, t.peer.cmd)); err != nil {
		return nil, err
	}
	for _, l := range locals {
		ours, echoes, statements, err := b.beside(l, connections, core, t, sidecar, echo, counter)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.what, err)
		}
		b.log.Printf("P4 %s, %d connections: %.0f requests/s, median %.1f us, %s; %d statements; echo %.0f requests/s, median %.1f us; %.2f of it",
			l.what, connections, median(ours.rates()), median(ours.medians()), ours.cost(), statements, median(echoes.rates()), median(echoes.medians()),
			median(ratios(ours.medians(), echoes.medians())))
		if connections == 1 {
			rows = append(rows, l.alone(ours, echoes))
			continue
		}
		rows = append(rows, l.together(connections, ours, echoes), result{
			id: "P4", what: l.what + ", statements", figure: fmt.Sprint(statements), peer: none, ratio: none, goal: "exactly 0", reached: statements == 0,
		})
	}
	return rows, nil
}

// turns are how often and how long an operation and the echo take turns.
type turns struct {
	rounds int
	length time.Duration
	peer   *loader
}

// beside measures an operation in turns with an echo, and counts the statements that
// have to do with it.
func (b *bench) beside(
	l local, connections int, core string, t turns, sidecar, echo *process, counter *counter,
) (ours, echoes runs, statements int64, err error) {
	load, err := b.loader(l.operation, connections, sidecar)
	if err != nil {
		return nil, nil, 0, err
	}
	defer load.stop()
	if err := errors.Join(keepOn(core, load.cmd), counter.reset()); err != nil {
		return nil, nil, 0, err
	}
	for range t.rounds {
		r, err := load.run(t.length, sidecar)
		e, err2 := t.peer.run(t.length, echo)
		if err := errors.Join(err, err2); err != nil {
			return nil, nil, 0, err
		}
		ours, echoes = append(ours, r.dividedBy(l.requests)), append(echoes, e)
	}
	all, _, err := counter.count("")
	return ours, echoes, all, err
}

// together is the row of many connections.
func (l local) together(connections int, ours, echoes runs) result {
	const goal = 60000
	rate, share := median(ours.rates()), median(ratios(ours.rates(), echoes.rates()))
	return result{
		id: "P4", what: fmt.Sprintf("%s, %d connections", l.what, connections),
		figure: fmt.Sprintf("%.0f requests/s, %s", rate, ours.cost()), peer: fmt.Sprintf("echo: %.0f requests/s, %s", median(echoes.rates()), echoes.cost()),
		ratio: fmt.Sprintf("%.2f of the echo", share), score: share, goal: fmt.Sprintf("at least %d requests/s", goal), reached: rate >= goal,
	}
}

// alone is the row of one connection.
func (l local) alone(ours, echoes runs) result {
	const goal = 20 // microseconds
	took, times := median(ours.medians()), median(ratios(ours.medians(), echoes.medians()))
	return result{
		id: "P4", what: l.what + ", one connection on one core, median",
		figure: fmt.Sprintf("%.1f µs", took), peer: fmt.Sprintf("echo: %.1f µs", median(echoes.medians())),
		ratio: fmt.Sprintf("%.2f of the echo", times), score: times, less: true, goal: fmt.Sprintf("at most %d µs", goal), reached: took <= goal,
	}
}
