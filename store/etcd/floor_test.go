package etcd_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// opened opens a lease.
func (r *rig) opened() store.LeaseID {
	r.T.Helper()
	id := uuid.New()
	if _, err := r.OpenLeases(r.Ctx, []cas.NewLease{{NewLease: store.NewLease{ID: id, TTL: time.Minute}, Instance: "i"}}); err != nil {
		r.T.Fatal(err)
	}
	return id
}

// wrote carries a swap out that reserves tokens.
func (r *rig) wrote(key string, version int64) cas.Record {
	r.T.Helper()
	done, err := r.Swap(r.Ctx, []cas.Swap{{Key: key, Version: version, Data: []byte("x"), Tokens: 1}})
	if err != nil || !done[0].Done {
		r.T.Fatalf("%+v, %v", done, err)
	}
	return done[0].Record
}

// TestTokensAreRaisedWhileNobodyHolds: a lease would have tokens from before. An instance that was running meanwhile, and has
// not heard of it, grants none of the old tokens afterwards: neither for a new key, nor for one that others have written.
func TestTokensAreRaisedWhileNobodyHolds(t *testing.T) {
	t.Parallel()
	s := on(t, cluster)
	busy, operator, idle, other := s.ready("busy"), s.ready("operator"), s.ready("idle"), s.ready("other")
	lease := busy.opened()
	first := int64(1) << 50
	if err := operator.RaiseTokens(operator.Ctx, first); err == nil || store.OutcomeUnknown(err) || !strings.Contains(err.Error(), "stop all sidecars") {
		t.Errorf("in use: %v", err)
	}
	if next, err := operator.NextToken(operator.Ctx); err != nil || next >= first {
		t.Errorf("a raise was refused, and the next token is %d: %v", next, err)
	}
	if r := busy.wrote("ns/early", 0); r.Base >= first {
		t.Fatalf("tokens from %d on, though nothing was raised", r.Base)
	}
	if err := busy.Revoke(busy.Ctx, []store.LeaseID{lease}); err != nil {
		t.Fatal(err)
	}
	if err := operator.RaiseTokens(operator.Ctx, first); err != nil {
		t.Fatal(err)
	}
	other.opened()
	waited := other.wrote("ns/waited for", 0)
	loaded, _, err := idle.Load(idle.Ctx, []string{"ns/waited for"}, nil) // without a lease, to hand it on
	if err != nil {
		t.Fatal(err)
	}
	if r := idle.wrote("ns/waited for", loaded[0].Version); r.Base < waited.Base+int64(waited.Tokens) {
		t.Errorf("tokens from %d on, after those from %d on", r.Base, waited.Base)
	}
	busy.opened()
	if r := busy.wrote("ns/new", 0); r.Base < first {
		t.Errorf("the tokens of a new key begin at %d, and were raised to %d", r.Base, first)
	}
}
