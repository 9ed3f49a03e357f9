package mysql_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/mysql"
)

func (r *rig) openFor(ttl time.Duration) store.History {
	r.T.Helper()
	history, err := r.OpenLeases(r.Ctx, []cas.NewLease{{NewLease: store.NewLease{ID: uuid.New(), TTL: ttl}, Instance: "one"}})
	r.Must(err)
	return history
}

// Another server may have forgotten grants: it begins a history, and grants nothing for the longest TTL in use. Swaps that grant
// nothing work.
// Proves: A8
func TestAnotherServerIsQuietFirst(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	r := s.ready("one")
	first := r.openFor(4 * time.Second)
	r.openFor(time.Second)
	r.Must(r.RaiseTokens(r.Ctx, time.Now().Add(time.Hour).UnixMicro())) // ahead of the clock
	kept := r.Done(cas.Swap{Key: "ns/kept", Data: []byte("x"), Tokens: 5})
	ahead := r.Done(cas.Swap{Key: "ns/deleted", Data: []byte("x"), Tokens: 5})
	r.Done(cas.Swap{Key: "ns/deleted", Version: ahead.Version, Delete: true})
	m.Restart(t)
	var again store.History
	await.Until(t, "the same server works", func() bool {
		history, err := r.OpenLeases(r.Ctx, []cas.NewLease{{NewLease: store.NewLease{ID: uuid.New(), TTL: time.Second}, Instance: "one"}})
		again = history
		return err == nil
	})
	if again != first {
		t.Error("a restart began a history")
	}

	m.Rename(t, 7)
	promoted := time.Now()
	var result cas.Swapped
	await.Until(t, "the new server answers", func() (ok bool) {
		var err error
		result, err = r.SwapOne(cas.Swap{Key: "ns/new", Data: []byte("x"), Tokens: 1})
		return err == nil
	})
	if result.Done || result.Quiet <= 0 || result.Quiet > 4*time.Second {
		t.Errorf("a grant after a promotion: %+v", result)
	}
	if result, _ := r.SwapOne(cas.Swap{Key: "ns/kept", Version: kept.Version, Data: []byte("y"), Tokens: 1}); result.Done || result.Quiet <= 0 || result.Record.Version != kept.Version {
		t.Errorf("a grant of a known key: %+v", result)
	}
	released := r.Done(cas.Swap{Key: "ns/kept", Version: kept.Version, Data: []byte("y")})
	if released.Base < kept.Base+(60*time.Second).Microseconds() {
		t.Errorf("tokens from %d, but the old server may have given away those above %d", released.Base, kept.Base)
	}
	if records, _, err := r.Load(r.Ctx, []string{"ns/kept"}, nil); err != nil || records[0].History == first {
		t.Errorf("in the old history: %v", err)
	}
	if now := r.openFor(time.Second); now == first {
		t.Error("leases are opened in the old history")
	}
	other := s.ready("other")
	await.Until(t, "the quiet time ends", func() bool {
		result, err := other.SwapOne(cas.Swap{Key: "ns/new", Data: []byte("x"), Tokens: 1})
		return err == nil && result.Done
	})
	if lasted := time.Since(promoted); lasted < 4*time.Second {
		t.Errorf("granted %s after the promotion", lasted)
	}
}

// With Quick, a failover forgets nothing, so the next server grants at once. Its history is a new one all the same.
func TestQuickFailover(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t)
	s := on(t, m)
	s.quick = true
	r := s.ready("one")
	first := r.openFor(time.Minute)
	m.Rename(t, 7)
	await.Until(t, "the new server grants", func() bool {
		result, err := r.SwapOne(cas.Swap{Key: "ns/new", Data: []byte("x"), Tokens: 1})
		return err == nil && result.Done
	})
	if r.openFor(time.Second) == first {
		t.Error("no history began")
	}
}

// A pooler may send packets to a replica, which has the same data. Such packets do nothing.
// Proves: A8
func TestPacketsAtAReplicaDoNothing(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	lease := r.OpenLease(time.Minute)
	s.session().exec("UPDATE locksidecar_meta SET server = 'server_id 77'") // as on a replica of that server
	if _, err := r.SwapOne(cas.Swap{Key: "ns/key", Data: []byte("x")}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("a swap: %v", err)
	}
	r.BecomesReady()
	await.Until(t, "the lease is renewed in the new history", func() bool { return r.Keeps(lease) })
}

// The note of the longest TTL is forgotten when nobody has used it for long, but not while a lease has it.
func TestLongestTTL(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	operator := s.session()
	longest := func() (ttl int64) {
		t.Helper()
		r.Must(operator.QueryRowContext(r.Ctx, "SELECT longest_ttl FROM locksidecar_meta").Scan(&ttl))
		return ttl
	}
	r.openFor(time.Hour)
	r.openFor(time.Minute)
	if got := longest(); got != time.Hour.Microseconds() {
		t.Errorf("the longest TTL is noted as %d", got)
	}
	r.Must(r.SweepOnce(r.Ctx))
	operator.exec("UPDATE locksidecar_meta SET longest_at = 1")
	r.Must(r.SweepOnce(r.Ctx))
	if got := longest(); got != time.Hour.Microseconds() {
		t.Errorf("with a lease of an hour: %d", got)
	}
	operator.exec("DELETE FROM locksidecar_leases WHERE ttl > 60000000; UPDATE locksidecar_meta SET longest_at = 1")
	r.Must(r.SweepOnce(r.Ctx))
	if got := longest(); got != time.Minute.Microseconds() {
		t.Errorf("later: %d", got)
	}
}

// An old primary grants nothing to a sidecar that has seen a later one, also on connections that were open all the time, and
// then to no other sidecar either. An operator may decide that the later one is lost.
// Proves: A8
func TestAnOldPrimaryIsRefused(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r, loyal := s.ready("one"), s.ready("loyal")
	held := r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
	operator := s.session()
	operator.exec("UPDATE locksidecar_meta SET began = began - 1") // of the later one the sidecar has seen, this one has missed it
	if result, err := r.SwapOne(cas.Swap{Key: "ns/key", Version: held.Version, Data: []byte("y")}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("a swap on an old primary: %+v, %v", result, err)
	}
	r.Refuses("an old primary")
	s.start("new").Refuses("an old primary")
	if result, err := loyal.SwapOne(cas.Swap{Key: "ns/key", Version: held.Version, Data: []byte("z")}); !store.Unavailable(err) {
		t.Errorf("a sidecar that has seen no later one: %+v, %v", result, err)
	}
	operator.exec("UPDATE locksidecar_meta SET server = 'restored'")
	r.BecomesReady()
	loyal.BecomesReady()
	r.Done(cas.Swap{Key: "ns/key", Version: held.Version, Data: []byte("y")})
}

// A sidecar that knows both servers stays with the later one when the old one, which its URL names first, comes back.
// Proves: A8
func TestTheLaterOfTwoServers(t *testing.T) {
	t.Parallel()
	old, later := mysqltest.Start(t), mysqltest.Start(t, mysqltest.WithFlag("--server-id=2"))
	s := on(t, old)
	later.Exec(t, "CREATE DATABASE "+s.Name+"; CREATE USER "+s.Name+" IDENTIFIED BY '"+s.Name+"'; GRANT ALL ON *.* TO "+s.Name)
	alone := s.url
	s.url = s.At(later.Address)
	if _, _, err := mysql.Migrate(t.Context(), s.url); err != nil {
		t.Fatal(err)
	}
	s.url, s.limit = s.At(old.Address+","+later.Address), time.Second
	r := s.ready("one")
	r.Done(cas.Swap{Key: "ns/old", Data: []byte("x")})
	old.Freeze()
	await.Until(t, "the later server is used", func() bool {
		_, err := r.SwapOne(cas.Swap{Key: "ns/later", Data: []byte("x")})
		return err == nil
	})
	old.Thaw()
	later.KillUser(t, s.Name) // so that connections are made anew
	await.Until(t, "the later server is used again", func() bool {
		found, _, err := r.Load(r.Ctx, []string{"ns/later"}, nil)
		if err == nil && found[0].Version == 0 {
			t.Fatal("the old server is used again")
		}
		return err == nil
	})
	s.url = alone
	s.start("loyal").Refuses("an old primary")
}

// A database that was made anew has forgotten all grants. A sidecar that knew the one before lets nothing be granted until
// nobody believes in them.
// Proves: A8
func TestANewDatabaseIsQuietFirst(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	r := s.ready("one")
	first := r.openFor(4 * time.Second)
	before := r.Done(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
	for _, table := range []string{"locks", "leases", "letters", "meta", "goose"} {
		s.session().exec("DROP TABLE locksidecar_" + table)
	}
	if _, _, err := mysql.Migrate(r.Ctx, s.url); err != nil {
		t.Fatal(err)
	}
	var result cas.Swapped
	await.Until(t, "the new tables are used", func() (ok bool) {
		var err error
		result, err = r.SwapOne(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
		return err == nil
	})
	if result.Done || result.Quiet <= 0 {
		t.Errorf("a grant in a new database: %+v", result)
	}
	if r.openFor(time.Second) == first {
		t.Error("no history began")
	}
	await.Until(t, "the quiet time ends", func() bool {
		result, err := r.SwapOne(cas.Swap{Key: "ns/key", Data: []byte("x"), Tokens: 1})
		return err == nil && result.Done && result.Record.Base > before.Base
	})
}
