package main

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
)

// onMySQL is a MariaDB that sidecars and the peers use, and sidecars on a PostgreSQL beside them.
type onMySQL struct {
	server             *process
	database           *mysqltest.Database
	db                 *sql.DB
	peers              string // the program with the peers
	sidecars, postgres []*process
	ends               []func()
}

// mysql measures what P2, P3, P6 and P10 measure, with the sidecar on MariaDB.
func (b *bench) mysql() ([]result, error) {
	rows, err := b.mysqlHandOffs()
	if err != nil {
		return nil, err
	}
	more, err := b.mysqlLoads()
	return append(rows, more...), err
}

// onMySQL starts them. The server has its default durability, and a log of the default size.
func (b *bench) onMySQL() (o *onMySQL, err error) {
	o = &onMySQL{peers: filepath.Join(b.folder, "peers")}
	defer func() {
		if err != nil {
			o.stop()
		}
	}()
	if err := b.buildPeers(o.peers); err != nil {
		return nil, err
	}
	server, err := mysqltest.Run(mysqltest.OnDisk(), mysqltest.WithFlag("--innodb-log-file-size=96M"), mysqltest.WithFlag("--innodb-buffer-pool-size=128M"),
		mysqltest.WithFlag("--max-connections=2000"))
	if err != nil {
		return nil, err
	}
	o.ends = append(o.ends, server.Stop)
	if o.database, err = server.MakeDatabase(); err != nil {
		return nil, err
	}
	if o.db, err = server.Connect(o.database.Name); err != nil {
		return nil, err
	}
	o.ends = append(o.ends, func() { _ = o.db.Close() })
	running, err := os.FindProcess(server.Pid())
	if err != nil {
		return nil, err
	}
	o.server = &process{cmd: &exec.Cmd{Process: running}}
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	o.ends = append(o.ends, cluster.Stop)
	for i := range 2 {
		for _, s := range []struct {
			name, url string
			to        *[]*process
		}{{"mysql", o.database.URL(), &o.sidecars}, {"postgres", url, &o.postgres}} {
			p, err := b.sidecar(fmt.Sprint("my", s.name, i), "STORE_URL="+s.url)
			if err != nil {
				return nil, err
			}
			o.ends = append(o.ends, p.stop)
			*s.to = append(*s.to, p)
		}
	}
	return o, nil
}

func (o *onMySQL) stop() {
	for i := range o.ends {
		o.ends[len(o.ends)-1-i]()
	}
}

// mysqlLoad is a load of the sidecar on MariaDB, with the same load of others.
type mysqlLoad struct {
	id, what              string
	operation             string
	connections, sidecars int
	goal                  float64 // of the table of locks; 0: none

	ours, table, rowLocks, onPostgres runs
}

// mysqlLoads measures pairs of free keys, and a key that all want, in turns.
func (b *bench) mysqlLoads() (rows []result, err error) {
	o, err := b.onMySQL()
	if err != nil {
		return nil, err
	}
	defer o.stop()
	loads := []*mysqlLoad{
		{id: "P3", what: "acquire+release, one client", operation: "pair", connections: 1, sidecars: 1},
		{id: "P2", what: "acquire+release, 64 connections", operation: "pair", connections: 64, sidecars: 1, goal: 1.2},
		{id: "P2", what: "acquire+release, 256 connections", operation: "pair", connections: 256, sidecars: 1},
		{id: "P10", what: "one hot key, 32 clients, one sidecar", operation: "hot", connections: 32, sidecars: 1},
		{id: "P10", what: "one hot key, 32 clients, sidecars: 2", operation: "hot", connections: 32, sidecars: 2},
	}
	for range b.rounds {
		for _, l := range loads {
			if err := l.measure(b, o); err != nil {
				return nil, fmt.Errorf("%s: %w", l.what, err)
			}
		}
	}
	for _, l := range loads {
		rows = append(rows, l.rows()...)
	}
	return rows, nil
}

func (l *mysqlLoad) measure(b *bench, o *onMySQL) error {
	var more []string
	if l.operation == "hot" {
		more = []string{"hot"}
	}
	peer := func(name string) (run, error) {
		address := fmt.Sprintf("%[1]s:%[1]s@tcp(%[2]s)/%[1]s", o.database.Name, o.database.Server.Address)
		load, err := b.loadBy(exec.Command(o.peers, append([]string{name, address, strconv.Itoa(l.connections)}, more...)...))
		return b.runOnce(load, err, []*process{o.server})
	}
	var line strings.Builder
	for _, m := range []struct {
		name    string
		to      *runs
		measure func() (run, error)
	}{
		{"the sidecar on MariaDB", &l.ours, func() (run, error) { return b.once(l.operation, l.connections, o.sidecars[:l.sidecars]...) }},
		{tableOfLocks, &l.table, func() (run, error) { return peer("mysql") }},
		{rowLocks, &l.rowLocks, func() (run, error) { return peer("mysql-rows") }},
		{"the sidecar on PostgreSQL", &l.onPostgres, func() (run, error) { return b.once(l.operation, l.connections, o.postgres[:l.sidecars]...) }},
	} {
		r, err := m.measure()
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		*m.to = append(*m.to, r)
		fmt.Fprintf(&line, "; %s %.0f/s, median %.2f ms, p99 %.2f ms, %s", m.name, r.rate(), milliseconds(r.Median), milliseconds(r.P99), runs{r}.cost())
	}
	b.log.Printf("mysql %s, %s%s", l.id, l.what, line.String())
	return nil
}

const (
	tableOfLocks = "a table: INSERT … ON DUPLICATE KEY UPDATE, DELETE"
	rowLocks     = "row locks: SELECT … FOR UPDATE, COMMIT"
)

func (l *mysqlLoad) rows() []result {
	row := func(peer string, peers runs) result {
		ratio := median(ratios(l.ours.rates(), peers.rates()))
		return result{
			id: "mysql " + l.id, what: fmt.Sprintf("%s, beside %s", l.what, peer),
			figure: fmt.Sprintf("%.0f/s, %.3f ms, %s", median(l.ours.rates()), median(l.ours.medians())/1000, l.ours.cost()),
			peer:   fmt.Sprintf("%s: %.0f/s, %.3f ms", peer, median(peers.rates()), median(peers.medians())/1000),
			ratio:  fmt.Sprintf("%.2f of it", ratio), score: ratio, goal: none, reached: true,
		}
	}
	beside := row(tableOfLocks, l.table)
	if l.goal > 0 {
		beside = beside.wants(l.goal)
	}
	return []result{beside, row(rowLocks, l.rowLocks), row("the sidecar on PostgreSQL", l.onPostgres)}
}

// mysqlHandOffs measures how long it takes from a release to the grant of a waiter behind another sidecar, in turns with sidecars
// on PostgreSQL.
func (b *bench) mysqlHandOffs() ([]result, error) {
	const each = 40
	o, err := b.onMySQL()
	if err != nil {
		return nil, err
	}
	defer o.stop()
	polled := &pods{url: o.database.URL(), position: o.version}
	defer polled.stop()
	if err := polled.start(b, "mysqlhandoff"); err != nil {
		return nil, err
	}
	database, err := b.pods("mysqlhandoffpg")
	if err != nil {
		return nil, err
	}
	defer database.stop()
	var ours, onPostgres []float64
	for range b.rounds {
		took, err := b.handOffs(polled, each)
		if err != nil {
			return nil, fmt.Errorf("on MariaDB: %w", err)
		}
		beside, err := b.handOffs(database, each)
		if err != nil {
			return nil, fmt.Errorf("on PostgreSQL: %w", err)
		}
		b.log.Printf("mysql P6 %d hand-offs: median %.2f ms, p99 %.2f ms; on PostgreSQL %.2f ms, %.2f ms", each, median(took), p99(took), median(beside), p99(beside))
		ours, onPostgres = append(ours, took...), append(onPostgres, beside...)
	}
	row := func(what string, figure, peer float64) result {
		return result{
			id: "mysql P6", what: "hand-off to a waiter behind another sidecar, " + what, figure: fmt.Sprintf("%.2f ms (of %d)", figure, len(ours)),
			peer: fmt.Sprintf("sidecars on PostgreSQL: %.2f ms", peer), ratio: fmt.Sprintf("%.2f of it", figure/peer), goal: none, reached: true,
		}
	}
	return []result{row("median", median(ours), median(onPostgres)), row("p99", p99(ours), p99(onPostgres))}, nil
}

// version is that of the key's record. It grows when a call is queued.
func (o *onMySQL) version() (n int64, err error) {
	err = o.db.QueryRow("SELECT COALESCE(MAX(version), 0) FROM locksidecar_locks WHERE name = ?", "default/"+handOffKey).Scan(&n)
	return n, err
}
