package redis_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/redistest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/redis"
)

// emptied returns a server whose data no other test uses. Its tests must not run at the same time.
func emptied(t *testing.T, url string, masters func() []*redistest.Server) *server {
	t.Helper()
	for _, m := range masters() {
		m.Do(t, "FLUSHALL")
	}
	return &server{t: t, url: url}
}

func TestBackendOnACluster(t *testing.T) {
	c := redistest.StartCluster(t)
	castest.RunInTurn(t, func(t *testing.T) castest.Server {
		return emptied(t, c.URL(), func() []*redistest.Server { return c.Masters(t) })
	})
}

func TestBackendWithSentinel(t *testing.T) {
	g := redistest.StartSentinel(t)
	castest.RunInTurn(t, func(t *testing.T) castest.Server {
		return emptied(t, g.URL(), func() []*redistest.Server { return []*redistest.Server{g.Master} })
	})
}

// holds is the TTL of leases that are longer than a failover, and shorter than [await.Patience]: nothing is granted for
// so long after it.
const holds = 12 * time.Second

// TestResharding: locks are kept, renewed and released while the cluster moves all slots of a master that have keys, and new ones can be
// had after the quiet time that follows for those slots.
// Proves: A9
func TestResharding(t *testing.T) {
	c := redistest.StartCluster(t)
	s := &server{t: t, url: c.URL(), ttl: time.Second}
	r := s.ready("one")
	lease := r.OpenLease(holds)
	held := map[string]cas.Record{}
	for range 100 {
		key := uuid.NewString()
		held[key] = r.Done(cas.Swap{Key: key, Data: []byte(key), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1})
	}
	masters := c.Masters(t)
	moved := 0
	for _, slot := range redis.Slots() { // to move the empty slots, too, takes minutes on a busy machine
		owns, err := masters[0].Owns(slot)
		r.Must(err)
		if !owns {
			continue
		}
		moved++
		renewsDuring(r, lease, redistest.SlotMove{From: masters[0], To: masters[1], Slot: slot})
		await.Until(t, "the lease is renewed", func() bool { return r.Keeps(lease) })
	}
	if moved == 0 {
		t.Error("no slot with keys was moved")
	}
	for key, record := range held {
		now := r.LoadOne(key)
		if now.Version != record.Version || string(now.Data) != key || len(now.States) != 1 || !now.States[0].Alive {
			t.Fatalf("after the move: %+v, was %+v", now, record)
		}
		var result cas.Swapped
		await.Until(t, "a lock is released and granted again", func() bool {
			var err error
			r.Keeps(lease)
			if result, err = r.SwapOne(cas.Swap{Key: key, Version: now.Version, Living: []store.LeaseID{lease}, Tokens: 1}); err != nil {
				t.Fatal(err)
			}
			return result.Done
		})
		if result.Record.Base <= record.Base {
			t.Errorf("token %d after %d", result.Record.Base, record.Base)
		}
	}
	if found, err := r.Opened(r.Ctx, "one"); err != nil || len(found) != 1 {
		t.Errorf("opened: %v, %v", found, err)
	}
}

// renewsDuring renews a lease while a slot moves, one key after the other. Renewals may fail, but none may say that the lease is lost.
func renewsDuring(r *rig, lease store.LeaseID, move redistest.SlotMove) {
	r.T.Helper()
	r.Must(move.Begin())
	moved := make(chan struct{})
	renewals, failed := 0, 0
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for done := false; !done; renewals++ {
			select {
			case <-moved:
				done = true
			default:
			}
			if kept, _, err := r.Renew(r.Ctx, []store.LeaseID{lease}); err != nil {
				failed++
			} else if len(kept) == 0 {
				r.T.Error("the lease counts as lost")
			}
		}
	})
	names, err := move.Keys(1000)
	for i := 0; err == nil && i < len(names); i++ {
		err = move.Move(names[i])
	}
	err = errors.Join(err, move.End())
	close(moved)
	renewing.Wait()
	r.Must(err)
	r.T.Logf("slot %d: %d keys, %d renewals during its move, %d failed", move.Slot, len(names), renewals, failed)
}

// TestASlotThatIsPartlyMoved: while some keys of a slot are on one server and the others on the next, a call has no effect and says so.
// Otherwise the next server would take a record or a lease that has not come yet for one that does not exist.
// Proves: A9
func TestASlotThatIsPartlyMoved(t *testing.T) {
	c := redistest.StartCluster(t)
	s := &server{t: t, url: c.URL(), ttl: time.Second, quick: true} // no quiet time after a move
	holder := s.ready("one")
	s.limit = time.Second
	other := s.ready("two")
	masters := c.Masters(t)
	for name, first := range map[string]func(prefix, key string, lease store.LeaseID) string{
		"meta":   func(prefix, _ string, _ store.LeaseID) string { return prefix + "meta" },
		"record": func(prefix, key string, _ store.LeaseID) string { return prefix + "k:" + key },
		"lease":  func(prefix, _ string, lease store.LeaseID) string { return prefix + "l:" + string(lease[:]) },
	} {
		t.Run(name, func(t *testing.T) {
			lease, key := holder.OpenLease(time.Minute), uuid.NewString()
			swap := cas.Swap{Key: key, Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1}
			held := holder.Done(swap)
			prefix, slot := holder.PartitionOf(key)
			from := c.Owner(t, slot)
			move := redistest.SlotMove{From: from, To: masters[(slices.Index(masters, from)+1)%len(masters)], Slot: slot}
			holder.Must(move.Begin())
			holder.Must(move.Move(first(prefix, key, lease)))
			if records, _, err := other.Load(other.Ctx, []string{key}, nil); err == nil && records[0].Version != held.Version {
				t.Errorf("another sidecar sees %+v, was %+v", records[0], held)
			}
			if kept, _, err := other.Renew(other.Ctx, []store.LeaseID{lease}); err == nil && len(kept) == 0 {
				t.Error("the lease counts as lost")
			}
			await.Until(t, "the outcome is known", func() bool { // a busy machine lets a call time out while it is sent again
				result, err := other.SwapOne(cas.Swap{Key: key, Data: []byte("y"), Tokens: 1})
				if result.Done {
					t.Errorf("a grant of a held key: %+v", result)
				}
				return !store.OutcomeUnknown(err)
			})
			holder.Must(move.End())
			await.Until(t, "the lease is renewed", func() bool { return holder.Keeps(lease) })
			if now := holder.LoadOne(key); now.Version != held.Version || len(now.States) != 1 || !now.States[0].Alive {
				t.Errorf("after the move: %+v, was %+v", now, held)
			}
		})
	}
}

// TestASourceThatIsSwitchedOver: the replica of a master takes over while some keys of its slots are on another server. That of Redis does not know
// of the moves, so it takes these keys for lost. That of Valkey does, so it refuses calls until somebody ends the moves. Neither may grant what is held
// before the holder's lease has ended.
// Proves: A9
func TestASourceThatIsSwitchedOver(t *testing.T) {
	c := redistest.StartCluster(t)
	short, long := &server{t: t, url: c.URL(), ttl: time.Second}, &server{t: t, url: c.URL(), ttl: holds}
	holder, other := short.ready("one"), short.ready("two")
	type half struct {
		key, prefix string
		slot        int
		moves       []string
		by          *rig // who wants the lock
		held        cas.Record
		protected   bool // by a quiet time, or because the record and its lease are there
	}
	var halves []*half
	for _, by := range []*rig{long.ready("three"), other, other} { // only callers know the TTL if meta is missing
		h := &half{by: by}
		for same := true; same; {
			h.key = uuid.NewString()
			h.prefix, h.slot = holder.PartitionOf(h.key)
			same = slices.ContainsFunc(halves, func(o *half) bool { return o.slot == h.slot || c.Owner(t, o.slot) != c.Owner(t, h.slot) })
		}
		halves = append(halves, h)
	}
	holder.grants(uuid.NewString()) // a server that is younger than the TTL grants nothing yet
	ends := time.Now().Add(holds)
	lease := holder.OpenLease(holds)
	from := c.Owner(t, halves[0].slot)
	masters := c.Masters(t)
	to := masters[(slices.Index(masters, from)+1)%len(masters)]
	for i, h := range halves {
		h.held = holder.Done(cas.Swap{Key: h.key, Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1})
		record := h.prefix + "k:" + h.key
		h.moves = [][]string{{h.prefix + "meta", record}, {record}, {h.prefix + "l:" + string(lease[:])}}[i]
		move := redistest.SlotMove{From: from, To: to, Slot: h.slot}
		holder.Must(move.Begin())
		holder.Must(move.Move(h.moves...))
	}
	from = c.SwitchOver(t, from)
	for _, h := range halves {
		move := redistest.SlotMove{From: from, To: to, Slot: h.slot}
		known, err := move.Known()
		holder.Must(err)
		if !known {
			continue
		}
		if records, _, err := h.by.Load(h.by.Ctx, []string{h.key}, nil); err == nil {
			t.Errorf("without %q: %+v, while the slot moves", h.moves, records)
		}
		holder.Must(move.End())
	}
	await.Until(t, "the locks are granted to others", func() bool {
		halves = slices.DeleteFunc(halves, func(h *half) bool {
			records, _, err := h.by.Load(h.by.Ctx, []string{h.key}, nil)
			if err != nil {
				return false
			}
			if now := records[0]; now.Version == h.held.Version && now.States[0].Alive {
				h.protected = true
				return false
			}
			result, err := h.by.SwapOne(cas.Swap{Key: h.key, Version: records[0].Version, Data: []byte("y"), Tokens: 1})
			if err != nil || !result.Done {
				h.protected = h.protected || err == nil && result.Quiet > 0
				return false
			}
			if left := time.Until(ends); left > 0 || !h.protected {
				t.Errorf("without %q, the lock was granted %s before its holder's lease ended", h.moves, left)
			}
			if result.Record.Base <= h.held.Base {
				t.Errorf("without %q: token %d after %d", h.moves, result.Record.Base, h.held.Base)
			}
			return true
		})
		return len(halves) == 0
	})
}

// TestClusterFailover: the replica of a master that dies takes over, and the other masters' locks are not touched.
// Proves: A9
func TestClusterFailover(t *testing.T) {
	c := redistest.StartCluster(t)
	s := &server{t: t, url: c.URL(), ttl: time.Second, limit: 2 * time.Second}
	r := s.ready("one")
	lease := r.OpenLease(holds)
	keys := map[string]cas.Record{}
	for range 60 {
		key := uuid.NewString()
		keys[key] = r.Done(cas.Swap{Key: key, Data: []byte(key), Tokens: 1, Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}})
	}
	history := r.LoadOne("any").History
	var tokens []int64
	for _, record := range keys {
		tokens = append(tokens, record.Base)
	}
	if most := 10 * time.Second; slices.Max(tokens)-slices.Min(tokens) > most.Microseconds() {
		t.Errorf("tokens from %d to %d: those of one partition raise those of another", slices.Min(tokens), slices.Max(tokens))
	}
	for _, m := range c.Masters(t) {
		c.ReplicaOf(t, m).CaughtUp(t, m) // one that has its first copy may get what follows a second later
	}
	c.Masters(t)[0].Kill()
	for key, record := range keys {
		var now cas.Record
		await.Until(t, "the record can be read", func() bool {
			ctx, cancel := context.WithTimeout(r.Ctx, 2*time.Second)
			defer cancel()
			records, _, err := r.Load(ctx, []string{key}, nil)
			if err == nil {
				now = records[0]
			}
			return err == nil
		})
		if now.Version != record.Version || string(now.Data) != key {
			t.Fatalf("after the failover: %+v, was %+v", now, record)
		}
		await.Until(t, "the key is granted again", func() bool {
			r.Keeps(lease)
			result, err := r.SwapOne(cas.Swap{Key: key, Version: now.Version, Tokens: 1})
			return err == nil && result.Done && result.Record.Base > record.Base
		})
	}
	if now := r.LoadOne("any").History; now == history {
		t.Error("the history is the same")
	}
	if !r.Keeps(lease) {
		t.Error("the lease is lost")
	}
}

// TestAPrimaryThatMissedItsSuccessor: a primary becomes a replica, hears nothing from its successor, and is promoted again. Its
// functions were never loaded anew, and its data says that it wrote last. It must begin a new history nevertheless.
// Proves: A9
func TestAPrimaryThatMissedItsSuccessor(t *testing.T) {
	t.Parallel()
	a, b := redistest.Start(t), redistest.Start(t)
	b.Follow(t, a.Address)
	first := at(t, a).ready("one")
	first.OpenLease(quick)
	first.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
	history := first.LoadOne("ns/key").History
	b.CaughtUp(t, a)
	b.Promote(t)
	a.Forget(t)
	second := at(t, b).ready("one")
	forgotten, _ := second.grants("ns/forgotten")
	a.Promote(t)
	first.BecomesReady() // a look at the replica may have found that it takes no writes
	result, err := first.SwapOne(cas.Swap{Key: "ns/forgotten", Data: []byte("x"), Tokens: 1})
	if err != nil || result.Done || result.Quiet <= 0 {
		t.Errorf("a grant at once: %+v, %v", result, err)
	}
	if now := first.LoadOne("ns/key"); now.History == history {
		t.Error("the history is the same")
	}
	if got, _ := first.grants("ns/forgotten"); got.Base <= forgotten.Base {
		t.Errorf("token %d after %d", got.Base, forgotten.Base)
	}
}

// TestTheFirstReplica: when a server gets its first replica, Redis gives it another replication id. Nothing was forgotten, so
// there is no quiet time, also not for sidecars with other functions.
func TestTheFirstReplica(t *testing.T) {
	t.Parallel()
	await.Until(t, "a first replica changes nothing", func() bool { // unless a busy machine lets no renewal through for 0.5 s
		return firstReplica(t)
	})
}

func firstReplica(t *testing.T) (same bool) {
	a, b := redistest.Start(t), redistest.Start(t)
	r := at(t, a).ready("one")
	lease := r.OpenLease(quick)
	history := r.LoadOne("ns/key").History
	id := a.Info(t, "replication", "master_replid")
	stop := make(chan struct{})
	var calling sync.WaitGroup
	calling.Go(func() { // sidecars renew
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				r.Keeps(lease)
			}
		}
	})
	b.Follow(t, a.Address)
	await.Until(t, "another id", func() bool { return a.Info(t, "replication", "master_replid") != id })
	metas := a.Do(t, "KEYS", "locksidecar:*:meta").([]any)
	await.Until(t, "a renewal has seen it", func() bool {
		return a.Do(t, "HGET", metas[0], "run") == a.Info(t, "replication", "master_replid")
	})
	close(stop)
	calling.Wait()
	for _, key := range []string{"ns/key", "ns/other"} {
		result, err := r.SwapOne(cas.Swap{Key: key, Data: []byte("x"), Tokens: 1})
		r.Must(err)
		if !result.Done {
			return false
		}
		a.Do(t, "FUNCTION", "FLUSH") // as sidecars with other functions find it
	}
	return r.LoadOne("ns/key").History == history
}
