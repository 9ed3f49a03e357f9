package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// beside is a server that sidecars and other locks use, with sidecars on a PostgreSQL beside them.
type beside struct {
	id     string // begins the ids of the results
	name   string
	url    string // of the sidecars' store
	server *process
	rivals []rival
	// settings are further ones of all sidecars.
	settings []string
	// position grows when a call is queued for handOffKey.
	position func() (int64, error)

	peers              string // the program that loads the rivals
	sidecars, postgres []*process
	ends               []func()
}

// rival is another lock on the same server. args are those of the program: what it loads, and where.
type rival struct {
	name string
	args []string
	// handOffs: the program measures hand-offs, too, and they may take this much of the rival's; zero: it does not.
	handOffs float64
}

func (o *beside) stop() {
	for _, end := range slices.Backward(o.ends) {
		end()
	}
}

// start starts all but the server.
func (o *beside) start(b *bench) error {
	o.peers = filepath.Join(b.folder, "peers")
	if err := b.buildPeers(o.peers); err != nil {
		return err
	}
	cluster, url, err := b.database()
	if err != nil {
		return err
	}
	o.ends = append(o.ends, cluster.Stop)
	for i := range 2 {
		for _, s := range []struct {
			name, url string
			to        *[]*process
		}{{o.id, o.url, &o.sidecars}, {"postgres", url, &o.postgres}} {
			p, err := b.sidecar(fmt.Sprint(o.id, "-", s.name, i), append([]string{"STORE_URL=" + s.url}, o.settings...)...)
			if err != nil {
				return err
			}
			o.ends = append(o.ends, p.stop)
			*s.to = append(*s.to, p)
		}
	}
	return nil
}

// measure measures hand-offs, stops and loads.
func (o *beside) measure(b *bench, goal float64, connections ...int) ([]result, error) {
	rows, err := o.handOffs(b)
	if err != nil {
		return nil, err
	}
	stops, err := o.stops(b)
	if err != nil {
		return nil, err
	}
	more, err := o.loads(b, goal, connections)
	return slices.Concat(rows, stops, more), err
}

// handOffs measures how long it takes from a release to the grant of a waiter behind another sidecar, in turns with the rivals
// and with sidecars on PostgreSQL.
func (o *beside) handOffs(b *bench) (rows []result, err error) {
	const each = 40
	pair := &pods{url: o.url, position: o.position, more: o.settings}
	defer pair.stop()
	if err := pair.start(b, o.id+"handoff"); err != nil {
		return nil, err
	}
	database, err := b.pods(o.id + "handoffpg")
	if err != nil {
		return nil, err
	}
	defer database.stop()
	type contender struct {
		name    string
		goal    float64
		measure func() ([]float64, error)
		took    []float64
		ratios  []float64
	}
	all := []*contender{{name: "the sidecar on " + o.name, measure: func() ([]float64, error) { return b.handOffs(pair, each) }}}
	for _, r := range o.rivals {
		if r.handOffs > 0 {
			all = append(all, &contender{name: r.name, goal: r.handOffs, measure: func() (took []float64, err error) {
				text, err := exec.CommandContext(b.ctx, o.peers, "hand-off", r.args[1], strconv.Itoa(each)).Output()
				if err == nil {
					err = json.Unmarshal(text, &took)
				}
				return took, err
			}})
		}
	}
	all = append(all, &contender{name: "sidecars on PostgreSQL", measure: func() ([]float64, error) { return b.handOffs(database, each) }})
	for range b.rounds {
		var line strings.Builder
		ours := 0.0
		for _, c := range all {
			took, err := c.measure()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			fmt.Fprintf(&line, "; %s: median %.2f ms, p99 %.2f ms", c.name, median(took), p99(took))
			if c == all[0] {
				ours = median(took)
			}
			c.took, c.ratios = append(c.took, took...), append(c.ratios, ours/median(took))
		}
		b.log.Printf("%s P6 %d hand-offs%s", o.id, each, line.String())
	}
	ours := all[0].took
	for _, c := range all[1:] {
		row := func(what string, figure, peer float64) result {
			return result{
				id: o.id + " P6", what: "hand-off to a waiter behind another sidecar, " + what, figure: fmt.Sprintf("%.2f ms (of %d)", figure, len(ours)),
				peer: fmt.Sprintf("%s: %.2f ms", c.name, peer), ratio: fmt.Sprintf("%.2f of it", figure/peer), less: true, goal: none,
			}
		}
		middle := row("median", median(ours), median(c.took))
		if c.goal > 0 {
			middle.score = median(c.ratios)
			middle = middle.wants(c.goal)
		}
		rows = append(rows, middle, row("p99", p99(ours), p99(c.took)))
	}
	return rows, nil
}

// stops measures how long a request to stop takes to the app of another sidecar, in turns with sidecars on PostgreSQL.
func (o *beside) stops(b *bench) ([]result, error) {
	const each, atMost = 40, 50 // ms
	var ours, database []float64
	for range b.rounds {
		for _, c := range []struct {
			sidecars []*process
			took     *[]float64
		}{{o.sidecars, &ours}, {o.postgres, &database}} {
			took, err := b.stops(c.sidecars[0], c.sidecars[1], each)
			if err != nil {
				return nil, fmt.Errorf("a request to stop: %w", err)
			}
			*c.took = append(*c.took, took...)
		}
	}
	row := func(what string, figure func([]float64) float64) result {
		f := figure(ours)
		return result{
			id: o.id + " stop", what: "a request to stop to the app of another sidecar, " + what, figure: fmt.Sprintf("%.2f ms (of %d)", f, len(ours)),
			peer: fmt.Sprintf("sidecars on PostgreSQL: %.2f ms", figure(database)), ratio: none, goal: fmt.Sprintf("at most %d ms", atMost), reached: f <= atMost,
		}
	}
	rows := []result{row("median", median), row("p99", p99)}
	b.log.Printf("%s stop %s (%s); p99 %s (%s)", o.id, rows[0].figure, rows[0].peer, rows[1].figure, rows[1].peer)
	return rows, nil
}

// besideLoad is a load of the sidecars, with the same load of the others.
type besideLoad struct {
	id, what              string
	operation             string
	connections, sidecars int
	goal                  float64 // of the first rival; 0: none
	figures               []runs  // ours first
}

// loads measures pairs of free keys, and a key that all want, in turns. The goal is for 64 connections.
func (o *beside) loads(b *bench, goal float64, connections []int) (rows []result, err error) {
	loads := []*besideLoad{{id: "P3", what: "acquire+release, one client", operation: "pair", connections: 1, sidecars: 1}}
	for _, n := range connections {
		l := &besideLoad{id: "P2", what: fmt.Sprintf("acquire+release, %d connections", n), operation: "pair", connections: n, sidecars: 1}
		if n == 64 {
			l.goal = goal
		}
		loads = append(loads, l)
	}
	loads = append(
		loads,
		&besideLoad{id: "P10", what: "one hot key, 32 clients, one sidecar", operation: "hot", connections: 32, sidecars: 1},
		&besideLoad{id: "P10", what: "one hot key, 32 clients, sidecars: 2", operation: "hot", connections: 32, sidecars: 2},
	)
	for range b.rounds {
		for _, l := range loads {
			if err := l.measure(b, o); err != nil {
				return nil, fmt.Errorf("%s: %w", l.what, err)
			}
		}
	}
	for _, l := range loads {
		rows = append(rows, l.rows(o)...)
	}
	return rows, nil
}

// names are those of all that are loaded, ours first.
func (o *beside) names() []string {
	names := []string{"the sidecar on " + o.name}
	for _, r := range o.rivals {
		names = append(names, r.name)
	}
	return append(names, "the sidecar on PostgreSQL")
}

func (l *besideLoad) measure(b *bench, o *beside) error {
	measures := []func() (run, error){func() (run, error) { return b.once(l.operation, l.connections, o.sidecars[:l.sidecars]...) }}
	for _, r := range o.rivals {
		args := append(slices.Clone(r.args), strconv.Itoa(l.connections))
		if l.operation == "hot" {
			args = append(args, "hot")
		}
		measures = append(measures, func() (run, error) {
			load, err := b.loadBy(exec.Command(o.peers, args...))
			return b.runOnce(load, err, []*process{o.server})
		})
	}
	measures = append(measures, func() (run, error) { return b.once(l.operation, l.connections, o.postgres[:l.sidecars]...) })
	if l.figures == nil {
		l.figures = make([]runs, len(measures))
	}
	var line strings.Builder
	for i, name := range o.names() {
		r, err := measures[i]()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		l.figures[i] = append(l.figures[i], r)
		fmt.Fprintf(&line, "; %s %.0f/s, median %.2f ms, p99 %.2f ms, %s", name, r.rate(), milliseconds(r.Median), milliseconds(r.P99), runs{r}.cost())
	}
	b.log.Printf("%s %s, %s%s", o.id, l.id, l.what, line.String())
	return nil
}

func (l *besideLoad) rows(o *beside) (rows []result) {
	ours := l.figures[0]
	for i, peer := range o.names()[1:] {
		peers := l.figures[i+1]
		ratio := median(ratios(ours.rates(), peers.rates()))
		row := result{
			id: o.id + " " + l.id, what: fmt.Sprintf("%s, beside %s", l.what, peer),
			figure: fmt.Sprintf("%.0f/s, %.3f ms, %s", median(ours.rates()), median(ours.medians())/1000, ours.cost()),
			peer:   fmt.Sprintf("%s: %.0f/s, %.3f ms", peer, median(peers.rates()), median(peers.medians())/1000),
			ratio:  fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
		}
		if i == 0 && l.goal > 0 {
			row = row.wants(l.goal)
		}
		rows = append(rows, row)
	}
	return rows
}
