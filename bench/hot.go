package main

import (
	"fmt"
	"os/exec"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// The peers of a hot key on the same server: durable updates of one row, and an advisory lock,
// which writes nothing.
const (
	hotTable  = `CREATE TABLE direct_hot (id integer PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50); INSERT INTO direct_hot VALUES (1, 0)`
	hotUpdate = `UPDATE direct_hot SET n = n + 1 WHERE id = 1;
`
	hotAdvisory = `SELECT pg_advisory_lock(1);
SELECT pg_advisory_unlock(1);
`
)

// hotKeys are the servers on which clients want one key: a sidecar on memory:// and
// several on one PostgreSQL.
type hotKeys struct {
	memory   *process
	sidecars []*process
	url      string
	ends     []func()
}

// hotKeys starts them.
func (b *bench) hotKeys(name string, sidecars int) (_ *hotKeys, err error) {
	h := &hotKeys{}
	defer func() {
		if err != nil {
			h.stop()
		}
	}()
	cluster, url, err := b.database(pgtest.WithSetting("max_connections", "300"))
	if err != nil {
		return nil, err
	}
	h.url = url
	h.ends = append(h.ends, cluster.Stop)
	if out, err := exec.CommandContext(b.ctx, "psql", url, "-qc", hotTable).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("psql: %w\n%s", err, out)
	}
	start := func(name, store string) (*process, error) {
		p, err := b.sidecar(name, "STORE_URL="+store)
		if err == nil {
			h.ends = append(h.ends, p.stop)
		}
		return p, err
	}
	if h.memory, err = start(name+"memory", "memory://"); err != nil {
		return nil, err
	}
	for i := range sidecars {
		p, err := start(fmt.Sprint(name, i), url)
		if err != nil {
			return nil, err
		}
		h.sidecars = append(h.sidecars, p)
	}
	return h, nil
}

func (h *hotKeys) stop() {
	for i := range h.ends {
		h.ends[len(h.ends)-1-i]()
	}
}
