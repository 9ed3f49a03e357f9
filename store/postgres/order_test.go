package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// orderKeys is the number of keys, which are asked for from the last to the first. orderStuck is
// the key whose row is locked.
const orderKeys, orderStuck = 11, "k05"

// ordered is a scene whose lease holds all keys.
type ordered struct {
	*scene
	asks   []store.Ask
	claims []store.Claim
}

func newOrdered(t *testing.T) *ordered {
	o := &ordered{scene: newScene(t)}
	for n := range orderKeys {
		o.asks = append(o.asks, askFor(fmt.Sprintf("k%02d", orderKeys-1-n), o.lease))
	}
	answers, err := o.Acquire(t.Context(), o.asks)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		o.claims = append(o.claims, store.Claim{Key: o.asks[i].Key, Token: want(t, a, store.Granted).Token, Lease: o.lease})
	}
	return o
}

// others returns asks of other attempts for the same keys.
func (o *ordered) others() []store.Ask {
	asks := make([]store.Ask, len(o.asks))
	for i, a := range o.asks {
		asks[i] = askFor(a.Key, o.lease)
	}
	return asks
}

func (o *ordered) changes() (changes []store.Change) {
	for _, c := range o.claims {
		changes = append(changes, store.Change{Key: c.Key, Token: c.Token, Lease: c.Lease, SetData: true})
	}
	return changes
}

func (o *ordered) release() error { _, err := o.Release(o.Context(), o.claims); return err }
func (o *ordered) enqueue() error { _, err := o.Enqueue(o.Context(), o.others()); return err }

// enqueueElsewhere queues waiters under another lease.
func (o *ordered) enqueueElsewhere() error {
	asks, lease := o.others(), openLease(o.T, o, time.Hour)
	for i := range asks {
		asks[i].Lease = lease
	}
	_, err := o.Enqueue(o.Context(), asks)
	return err
}

// Trap: statements that lock several rows deadlock if their orders differ. Each batch here waits
// for a key in the middle. Then it must have locked exactly the rows of the keys before.
// Proves: trap deadlock
func TestABatchLocksItsRowsInTheOrderOfTheKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, batch func(*ordered) error }{
		"acquire": {(*ordered).release, func(o *ordered) error {
			postgres.SetReleased(o.Store)
			_, err := o.Acquire(o.Context(), o.others())
			return err
		}},
		"acquire rows": {(*ordered).release, func(o *ordered) error { _, err := o.Acquire(o.Context(), o.others()); return err }},
		"acquire bind:ttl": {(*ordered).release, func(o *ordered) error {
			asks := o.others()
			for i := range asks {
				asks[i].Lease, asks[i].TTL = uuid.Nil, time.Hour
			}
			_, err := o.Acquire(o.Context(), asks)
			return err
		}},
		"enqueue": {nil, (*ordered).enqueue},
		"enqueue for shares of some": {nil, func(o *ordered) error {
			asks := o.others()
			for i := 0; i < len(asks); i += 2 {
				asks[i].Shared = true
			}
			_, err := o.Enqueue(o.Context(), asks)
			return err
		}},
		"release":           {nil, (*ordered).release},
		"release contended": {(*ordered).enqueue, (*ordered).release},
		"reap with waiters": {(*ordered).enqueueElsewhere, func(o *ordered) error { return o.Revoke(o.Context(), []store.LeaseID{o.lease}) }},
		"amend": {nil, func(o *ordered) error {
			_, err := o.Amend(o.Context(), o.changes())
			return err
		}},
		"downgrade": {nil, func(o *ordered) error {
			_, err := o.Downgrade(o.Context(), o.changes())
			return err
		}},
		"adopt": {nil, func(o *ordered) error {
			var adoptions []store.Adoption
			for _, c := range o.changes() {
				c.Token++
				adoptions = append(adoptions, store.Adoption{Change: c, Served: []store.AttemptID{uuid.New()}})
			}
			_, err := o.Adopt(o.Context(), adoptions)
			return err
		}},
		"withdraw": {nil, func(o *ordered) error {
			var attempts []store.Attempt
			for _, a := range o.asks {
				attempts = append(attempts, a.Attempt)
			}
			return withdraw(o.Context(), o, attempts...)
		}},
		"signal": {nil, func(o *ordered) error {
			var signals []store.Signal
			for _, a := range o.asks {
				signals = append(signals, store.Signal{Kind: store.Stop, Key: a.Key})
			}
			_, err := o.Signal(o.Context(), signals)
			return err
		}},
		"watch": {nil, func(o *ordered) error {
			var keys []string
			for _, a := range o.asks {
				keys = append(keys, a.Key)
			}
			return o.Watch(o.Context(), keys, o.lease)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOrdered(t)
			if c.before != nil {
				if err := c.before(o); err != nil {
					t.Fatal(err)
				}
			}
			exec(t, o.other, "BEGIN")
			exec(t, o.other, "SELECT FROM locksidecar.locks WHERE key = $1 FOR UPDATE", orderStuck)
			done := make(chan error, 1)
			go func() { done <- c.batch(o) }()
			awaitBlocked(t, o.url)
			unlocked := pgtest.Query[string](t, o.url, `SELECT string_agg(key, ' ' ORDER BY key) FROM (
				SELECT key FROM locksidecar.locks FOR UPDATE SKIP LOCKED) l`)
			if unlocked != "k06 k07 k08 k09 k10" {
				t.Errorf("rows behind %s that are not locked: %s", orderStuck, unlocked)
			}
			exec(t, o.other, "ROLLBACK")
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
