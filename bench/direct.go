package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// The peer of P2 and P3: what a careful service would do without us. It leaves no row behind, so
// each of its inserts is a fresh one; P2f's keys come out of so many that none comes twice.
const (
	directTable = `CREATE TABLE direct_locks (key text PRIMARY KEY, owner text NOT NULL, expires_at timestamptz NOT NULL)`
	directPair  = `\set k random(1, 1000000)
INSERT INTO direct_locks (key, owner, expires_at) VALUES ('bench:' || :k, 'me', now() + interval '15 s')
	ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at WHERE direct_locks.expires_at < now();
DELETE FROM direct_locks WHERE key = 'bench:' || :k AND owner = 'me';
`
	directKeys, freshKeys = "random(1, 1000000)", "random(1, 9000000000000000000)"
)

// besideDirect starts a sidecar on a database that has the table of its peer too.
// stop ends both.
func (b *bench) besideDirect(name string) (sidecar *process, url string, stop func(), err error) {
	cluster, url, err := b.database()
	if err != nil {
		return nil, "", nil, err
	}
	if out, err := exec.CommandContext(b.ctx, "psql", url, "-qc", directTable).CombinedOutput(); err != nil {
		cluster.Stop()
		return nil, "", nil, fmt.Errorf("psql: %w\n%s", err, out)
	}
	if sidecar, err = b.sidecar(name, "STORE_URL="+url); err != nil {
		cluster.Stop()
		return nil, "", nil, err
	}
	return sidecar, url, func() {
		sidecar.stop()
		cluster.Stop()
	}, nil
}

var tpsLine = regexp.MustCompile(`tps = ([0-9.]+)`)

// pgbench runs a transaction again and again and returns how many a second. Two
// threads, since one alone cannot keep many clients busy; one client uses one.
func (b *bench) pgbench(url, transaction string, clients int) (float64, error) {
	script := filepath.Join(b.folder, "direct.sql")
	if err := os.WriteFile(script, []byte(transaction), 0o600); err != nil {
		return 0, err
	}
	seconds := strconv.Itoa(max(int(b.length.Seconds()), 1))
	out, err := exec.CommandContext(b.ctx, "pgbench", "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", strconv.Itoa(min(clients, 2)),
		"-T", seconds, "-f", script, url).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench with %d clients: %w\n%s", clients, err, out)
	}
	match := tpsLine.FindSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("pgbench with %d clients says no tps:\n%s", clients, out)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}
