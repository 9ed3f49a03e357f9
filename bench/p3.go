package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// The peer of P2 and P3: what a careful service would do without us.
const (
	directTable = `CREATE TABLE direct_locks (key text PRIMARY KEY, owner text NOT NULL, expires_at timestamptz NOT NULL)`
	directPair  = `\set k random(1, 1000000)
INSERT INTO direct_locks (key, owner, expires_at) VALUES ('bench:' || :k, 'me', now() + interval '15 s')
	ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, expires_at = excluded.expires_at WHERE direct_locks.expires_at < now();
DELETE FROM direct_locks WHERE key = 'bench:' || :k AND owner = 'me';
`
)

// p3 measures one client's pair on PostgreSQL against pgbench.
func (b *bench) p3() ([]result, error) {
	const goal = 1.25
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	sidecar, err := b.sidecar("p3", "STORE_URL="+url)
	if err != nil {
		return nil, err
	}
	defer sidecar.stop()
	if out, err := exec.Command("psql", url, "-qc", directTable).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var ours, direct, ratios []float64
	for range b.rounds {
		d, err := b.pgbench(url, 1)
		if err != nil {
			return nil, err
		}
		p, err := b.pairs(sidecar.socket, 1)
		if err != nil {
			return nil, err
		}
		b.log.Printf("P3 one client: %.3f ms a pair; direct %.3f ms", 1000/p, 1000/d)
		ours, direct, ratios = append(ours, 1000/p), append(direct, 1000/d), append(ratios, d/p)
	}
	return []result{{
		id: "P3", what: "one client's acquire+release on PostgreSQL",
		figure: fmt.Sprintf("%.3f ms", median(ours)), peer: fmt.Sprintf("direct: %.3f ms", median(direct)),
		ratio: fmt.Sprintf("%.2f of direct", median(ratios)), goal: fmt.Sprintf("at most %.2f", goal), reached: median(ratios) <= goal,
	}}, nil
}

var tpsLine = regexp.MustCompile(`tps = ([0-9.]+)`)

// pgbench runs the direct pair and returns pairs per second.
func (b *bench) pgbench(url string, clients int) (float64, error) {
	script := filepath.Join(b.folder, "direct.sql")
	if err := os.WriteFile(script, []byte(directPair), 0o600); err != nil {
		return 0, err
	}
	seconds := strconv.Itoa(max(int(b.length.Seconds()), 1))
	out, err := exec.CommandContext(b.ctx, "pgbench", "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-T", seconds, "-f", script, url).CombinedOutput()
	match := tpsLine.FindSubmatch(out)
	if err != nil || match == nil {
		return 0, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	return strconv.ParseFloat(string(match[1]), 64)
}
