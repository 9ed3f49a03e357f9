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

// A node that is cut off from the others leads them no more, and follows when it is back. Its clients reach it all the
// time.
func TestIsolatedNode(t *testing.T) {
	c := etcdtest.Start(t, etcdtest.Nodes(3), etcdtest.Separable(), etcdtest.WithElection(20*time.Millisecond, 200*time.Millisecond))
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	first := c.Leader(t)
	first.Isolate()
	await.Until(t, "another leader", func() bool {
		now := c.Leads()
		return now != nil && now != first
	})
	await.Until(t, "the node knows that it leads no more", func() bool {
		status, err := first.Status()
		return err == nil && status.Leader == 0
	})
	second := c.Leader(t)
	client := c.Client(t, second)
	if _, err := client.Put(ctx, "key", "value"); err != nil {
		t.Fatal(err)
	}
	first.Rejoin()
	await.Until(t, "the node is back", func() bool {
		try, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		got, err := c.Client(t, first).Get(try, "key")
		return err == nil && len(got.Kvs) == 1
	})
}
