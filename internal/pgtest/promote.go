package pgtest

import (
	"os"
	"path/filepath"
	"testing"
)

// Promote makes the server a standby and promotes it, as a failover does: it is on a
// new timeline afterwards. All connections break.
func (c *Cluster) Promote(tb testing.TB) {
	tb.Helper()
	c.Shutdown()
	signal := filepath.Join(c.data(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	if c.who != nil {
		if err := os.Chown(signal, int(c.who.Uid), int(c.who.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := c.launch(); err != nil {
		tb.Fatal(err)
	}
	if out, err := c.command("pg_ctl", "promote", "-D", c.data(), "-w", "-s").CombinedOutput(); err != nil {
		tb.Fatalf("pgtest: promote: %v\n%s", err, out)
	}
}
