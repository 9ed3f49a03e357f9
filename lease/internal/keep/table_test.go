package keep

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
)

// TestDueSeesKeysWithPresentCalls: a key is given up in time although a call for it is present, which neither takes it nor gives it up.
func TestDueSeesKeysWithPresentCalls(t *testing.T) {
	table := New(time.Nanosecond, MaxEntries, time.Hour, alone, clocktest.Bubble{})
	now := table.clk.Now()
	g := NewGrant("k", &heartbeat.Lease{}, 1, now, now, now)
	if !table.Keep(g, now) {
		t.Fatal("the key is not kept")
	}
	table.CallCame("k")
	giveUp, _, _ := table.Due()
	if len(giveUp) != 1 || giveUp[0] != g {
		t.Fatalf("due is %v", giveUp)
	}
	table.GaveUp(g, true)
	sh := table.shard("k")
	if e := sh.entries["k"]; e.in != nil {
		t.Error("an entry with a present call is idle")
	}
	table.CallLeft("k")
	if e := sh.entries["k"]; e.in != &sh.idle {
		t.Error("an entry without a present call is not idle")
	}
}

// TestAnOldGrantIsDue: a key whose grant is too old is given up, even if it came back just now and would be kept for longer.
func TestAnOldGrantIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New(MaxAge, MaxEntries, time.Hour, alone, clocktest.Bubble{})
		asked := table.clk.Now()
		g := NewGrant("k", &heartbeat.Lease{}, 1, asked, asked, asked)
		time.Sleep(MaxAge - time.Millisecond)
		if !table.Keep(g, table.clk.Now()) {
			t.Fatal("the key is not kept")
		}
		if giveUp, _, _ := table.Due(); len(giveUp) > 0 {
			t.Errorf("due is %v", giveUp)
		}
		time.Sleep(time.Millisecond)
		if giveUp, _, _ := table.Due(); len(giveUp) != 1 {
			t.Errorf("due is %v", giveUp)
		}
	})
}

func alone() float64 { return 1 }

// TestTheOldestKeysMakeRoom: if too many keys are kept, keys of which only something is known are forgotten, and those that were not used for longest are given up.
func TestTheOldestKeysMakeRoom(t *testing.T) {
	const most = 1000
	table := New(time.Hour, most, time.Hour, alone, clocktest.Bubble{})
	lease, now := &heartbeat.Lease{}, table.clk.Now()
	var keys []string // of one shard
	for i := 0; len(keys) <= most/shards+1; i++ {
		if key := "k" + time.Duration(i).String(); table.shard(key) == &table.shards[0] {
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		if !table.Keep(NewGrant(key, lease, 1, now, now, now), now) {
			t.Fatal("the key is not kept")
		}
	}
	giveUp, _, _ := table.Due()
	if len(giveUp) != 2 || giveUp[0].Key != keys[0] || giveUp[1].Key != keys[1] {
		t.Fatalf("due is %v", giveUp)
	}
	for _, g := range giveUp {
		table.GaveUp(g, true)
	}
	sh := &table.shards[0]
	if giveUp, _, _ := table.Due(); len(giveUp) > 0 || sh.kept.n != most/shards || sh.idle.n > 0 {
		t.Errorf("due is %v, %d entries are kept, %d are idle", giveUp, sh.kept.n, sh.idle.n)
	}
}
