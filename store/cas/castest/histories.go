package castest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Forgetful is a [Server] that may forget what it confirmed.
type Forgetful interface {
	Server
	// FailOver replaces the server by one that has the data of before the call of forgotten, as a replica that missed all that came later.
	FailOver(t *testing.T, forgotten func())
}

// RunForgetful tests what follows when a server has forgotten something: see Histories at [cas.Backend].
func RunForgetful(t *testing.T, server func(t *testing.T) Forgetful) {
	runGroups(t, true, map[string]func(*testing.T, *client){"a new history": newHistory}, func(t *testing.T) Server { return server(t) })
}

// newHistory: a server that has forgotten a grant begins a history. It grants nothing for the longest TTL in use, and all else works. Its
// tokens and versions are above the forgotten ones, and leases that it knows go on.
func newHistory(t *testing.T, c *client) {
	lease := c.open(short, "one")
	known := c.granted("ns/known")
	history := c.load("ns/known").History
	var forgotten, gone cas.Record
	var died time.Time
	c.server.(Forgetful).FailOver(t, func() { //nolint:forcetypeassert // see RunForgetful
		forgotten = c.done(cas.Swap{Key: "ns/forgotten", Data: []byte("x"), Leases: []store.LeaseID{lease}, Living: []store.LeaseID{lease}, Tokens: 1})
		gone = c.done(cas.Swap{Key: "ns/gone", Data: []byte("x"), Tokens: 1})
		gone = c.done(cas.Swap{Key: "ns/gone", Version: gone.Version, Delete: true, Tokens: 0})
		if renewed, now, err := c.Renew(c.ctx, []store.LeaseID{lease}); err != nil || len(renewed) != 1 || now != history {
			t.Errorf("a renewal before: %v in %v, %v", renewed, now, err)
		}
		died = time.Now()
	})
	var refused cas.Swapped
	await.Until(t, "the new server answers", func() bool {
		done, err := c.Swap(c.ctx, []cas.Swap{{Key: "ns/forgotten", Data: []byte("x"), Tokens: 1}})
		if err == nil {
			refused = done[0]
		}
		return err == nil
	})
	if refused.Done || refused.Quiet <= 0 || refused.Record.Version != 0 {
		t.Fatalf("the first answer to a grant: %+v", refused)
	}
	if again := c.swap(cas.Swap{Key: "ns/known", Version: known.Version, Data: []byte("x"), Tokens: 1})[0]; again.Done || again.Quiet <= 0 || again.Record.Version != known.Version {
		t.Errorf("a grant of a known key: %+v", again)
	}
	if _, err := c.NextToken(c.ctx); !store.Unavailable(err) {
		t.Errorf("the next token in a quiet time: %v", err)
	}
	if now := c.load("ns/known"); now.History == history || now.Version != known.Version {
		t.Errorf("a known record: %+v, was %+v in %v", now, known, history)
	}
	if _, now, err := c.Renew(c.ctx, []store.LeaseID{lease}); err != nil || now == history {
		t.Errorf("a renewal is in the history %v, before it was %v: %v", now, history, err)
	}
	opened, err := c.OpenLeases(c.ctx, []cas.NewLease{{NewLease: store.NewLease{ID: uuid.New(), TTL: short}, Instance: "one"}})
	if now := c.load("ns/known").History; err != nil || opened != now {
		t.Errorf("a lease is opened in the history %v, and a record is read in %v: %v", opened, now, err)
	}
	late := c.swap(cas.Swap{Key: "ns/forgotten", Version: forgotten.Version, Data: []byte("late")})[0]
	if late.Done {
		t.Error("a swap of the version that was forgotten was carried out")
	}
	released := c.done(cas.Swap{Key: "ns/known", Version: known.Version, Data: []byte("released")})
	if released.Version <= forgotten.Version || released.Base <= forgotten.Base || released.Base <= gone.Base {
		t.Errorf("version %d and tokens from %d on; forgotten were version %d, tokens from %d and %d on", released.Version, released.Base, forgotten.Version, forgotten.Base, gone.Base)
	}
	got := c.granted("ns/forgotten")
	if lasted := time.Since(died); lasted < short {
		t.Errorf("granted %s after the failover, with leases of %s", lasted, short)
	}
	if got.Base <= forgotten.Base {
		t.Errorf("token %d after the forgotten %d", got.Base, forgotten.Base)
	}
}

// granted grants a key as soon as the server does. A new server may have a quiet time, too.
func (c *client) granted(key string) (r cas.Record) {
	c.t.Helper()
	await.Until(c.t, "the key is granted", func() bool {
		done := c.swap(cas.Swap{Key: key, Version: c.load(key).Version, Data: []byte("x"), Tokens: 1})[0]
		r = done.Record
		return done.Done
	})
	return r
}
