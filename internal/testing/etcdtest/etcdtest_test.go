package etcdtest_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/etcdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A cluster goes on without its leader, and data outlives a kill of all nodes.
func TestClusterOutlivesItsNodes(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Nodes(3), etcdtest.WithElection(20*time.Millisecond, 200*time.Millisecond))
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	client := c.Client(t)
	if _, err := client.Put(ctx, "key", "value"); err != nil {
		t.Fatal(err)
	}
	first := c.Leader(t)
	first.Freeze()
	second := c.Leader(t)
	if second == first {
		t.Fatal("the frozen node is the leader")
	}
	first.Thaw()
	for _, n := range c.Nodes {
		n.Kill()
	}
	c.Revive(t)
	got, err := c.Client(t, first).Get(ctx, "key")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
		t.Errorf("after the restart: %v, %v", got, err)
	}
}
