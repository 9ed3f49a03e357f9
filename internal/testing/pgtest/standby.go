package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Promote makes the server a standby and promotes it, as a failover does: it is on a
// new timeline afterwards. All connections break.
func (c *Cluster) Promote(tb testing.TB) {
	tb.Helper()
	c.Demote(tb)
	c.Lead(tb)
}

// FailOver is Promote for programs without a testing.TB.
func (c *Cluster) FailOver() error {
	c.Shutdown()
	if err := c.put(file{"standby.signal", nil}); err != nil {
		return err
	}
	if err := c.launch(); err != nil {
		return err
	}
	if out, err := toItsEnd(c.command("pg_ctl", "promote", "-D", c.data(), "-w", "-s")); err != nil {
		return fmt.Errorf("pgtest: promote: %w\n%s", err, out)
	}
	return nil
}

// Demote makes the server a standby of nobody, which takes no writes. All connections
// break.
func (c *Cluster) Demote(tb testing.TB) {
	tb.Helper()
	c.Shutdown()
	c.mark(tb, "standby.signal")
	if err := c.launch(); err != nil {
		tb.Fatal(err)
	}
}

// Lead promotes a server that Demote made a standby. Connections stay.
func (c *Cluster) Lead(tb testing.TB) {
	tb.Helper()
	if out, err := toItsEnd(c.command("pg_ctl", "promote", "-D", c.data(), "-w", "-s")); err != nil {
		tb.Fatalf("pgtest: promote: %v\n%s", err, out)
	}
}

// Copy stops the server and copies its data, as another standby has them. The function that
// it returns stops the server again and goes on with the copy. Both leave it stopped.
func (c *Cluster) Copy(tb testing.TB) (goOn func()) {
	tb.Helper()
	c.Shutdown()
	other := c.data() + ".copy"
	if out, err := exec.Command("cp", "-a", c.data(), other).CombinedOutput(); err != nil {
		tb.Fatalf("pgtest: copy: %v\n%s", err, out)
	}
	return func() {
		tb.Helper()
		c.Shutdown()
		if err := os.RemoveAll(c.data()); err != nil {
			tb.Fatal(err)
		}
		if err := os.Rename(other, c.data()); err != nil {
			tb.Fatal(err)
		}
	}
}
