package sidecar

import (
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store/memory"
)

// When memory is low, the pods that take the most get nothing more, and the others do, until it is full.
// Proves: threat flood, threat other pod
func TestMemoryIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		low, full := false, false
		m := newShares(func() bool { return low }, func() bool { return full })
		weights := map[hostfolder.Key]int64{"greedy": 1000, "as greedy": 1000, "busy": 100, "quiet": 10, "idle": 0}
		for k := range weights {
			m.add(k, func() int64 { return weights[k] })
		}
		check := func(when string, want ...hostfolder.Key) {
			t.Helper()
			time.Sleep(weighPause)
			refused := map[hostfolder.Key]bool{}
			for _, k := range want {
				refused[k] = true
			}
			for k := range weights {
				if m.refuses(k) != refused[k] {
					t.Errorf("%s: %q is refused: %t", when, k, !refused[k])
				}
			}
		}
		check("with memory")
		low = true
		check("low", "greedy", "as greedy")
		full = true
		check("full", "greedy", "as greedy", "busy", "quiet", "idle")
		full = false
		weights["greedy"], weights["as greedy"] = 0, 20
		check("after the greedy ones have let go", "busy")
		for _, k := range []hostfolder.Key{"greedy", "as greedy", "busy", "idle"} {
			m.forget(k)
			delete(weights, k)
		}
		check("alone", "quiet")
		if m.add("new", func() int64 { return 0 }); m.refuses("new") {
			t.Error("a new pod is refused")
		}
	})
}

// The live memory decides who is refused: above three quarters of the limit the pod that takes the most, above nine tenths all.
// Proves: threat flood, threat other pod
func TestMemoryIsWatched(t *testing.T) { //nolint:paralleltest // it uses much of the process's memory
	const limit = 256 << 20
	m := watchShares(limit, slog.New(slog.DiscardHandler))
	m.add("greedy", func() int64 { return 2 })
	m.add("quiet", func() int64 { return 1 })
	await.Until(t, "memory", func() bool { runtime.GC(); return !m.refuses("greedy") })
	low := make([]byte, limit/10*8)
	await.Until(t, "the greedy pod is refused", func() bool { runtime.GC(); return m.refuses("greedy") })
	if m.refuses("quiet") {
		t.Error("the quiet pod is refused")
	}
	full := make([]byte, limit/10*2)
	await.Until(t, "all are refused", func() bool { runtime.GC(); return m.refuses("quiet") })
	runtime.KeepAlive(low)
	runtime.KeepAlive(full)
	await.Until(t, "memory is free again", func() bool { runtime.GC(); return !m.refuses("greedy") && !m.refuses("quiet") })
}

// A pod weighs what its sessions' locks take with their keys and data, and what its connections take.
// Proves: threat other pod
func TestWeightOfAPod(t *testing.T) {
	var log logtest.Log
	n := newNode(t, memory.NewSpace(), &log)
	v := n.publish(t, "web")
	await.Until(t, "the pod to be served", func() bool { n.look(t.Context()); return n.serves(v) })
	p := n.served()[v.Key()]
	weight := n.memory.weights[v.Key()]
	if got := weight(); got != 0 {
		t.Errorf("an idle pod weighs %d", got)
	}
	session, err := p.locks.OpenSession(lease.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	data := []byte(`"` + strings.Repeat("d", 10_000) + `"`)
	if _, err := p.locks.Acquire(t.Context(), session, lease.Request{Key: "key", Data: data}); err != nil {
		t.Fatal(err)
	}
	if got, least := weight(), int64(lockMemory+len("key")+len(data)); got < least || got > least+lockMemory {
		t.Errorf("a lock with %d bytes weighs %d", len(data), got)
	}
	session.End(lease.EndDropped)
	await.Until(t, "the lock weighs nothing any more", func() bool { return weight() == 0 })
	nc, err := net.Dial("unix", n.folder.Socket(v.Key()))
	if err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the connection weighs", func() bool { return weight() == connMemory })
	_ = nc.Close()
	await.Until(t, "the connection is gone", func() bool { return weight() == 0 })
	n.patience = 0
	n.stopAll(t)
}
