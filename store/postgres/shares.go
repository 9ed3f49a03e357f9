package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// sharedLease is the lease id in the lock row of a shared key: see the function shared_lease.
var sharedLease = uuid.UUID{15: 1}

// limitOf is the limit of an ask in the database's form: nil if it asks for no share.
func limitOf(a *store.Ask) *int {
	if !a.Shared {
		return nil
	}
	return &a.Limit
}

// shown is the result of the function shown for a shared key. Times are in microseconds.
type shown struct {
	Count   int   `json:"count"`
	NextEnd int64 `json:"next_end"`
	Holders []struct {
		Token       int64         `json:"token"`
		Slot        int           `json:"slot"`
		Lease       uuid.NullUUID `json:"lease"`
		Instance    string        `json:"instance"`
		Pod         string        `json:"pod"`
		Renewed     bool          `json:"renewed"`
		Pending     bool          `json:"pending"`
		Session     string        `json:"session"`
		Owner       string        `json:"owner"`
		Data        *string       `json:"data"`
		Traceparent string        `json:"traceparent"`
		AcquiredAt  int64         `json:"acquired_at"`
		HeldFor     int64         `json:"held_for"`
		ExpiresIn   int64         `json:"expires_in"`
		Stopping    *int64        `json:"stopping"`
		StopReason  *string       `json:"stop_reason"`
	} `json:"holders"`
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// show writes the holders of a shared key into a lock.
func (s *shown) show(l *store.Lock) {
	l.Held, l.Shared, l.HoldersCount, l.NextEnd = true, true, s.Count, micros(s.NextEnd)
	l.Holders = make([]store.Share, len(s.Holders))
	for i := range s.Holders {
		h := &s.Holders[i]
		share := store.Share{Token: h.Token, Slot: h.Slot, Holder: store.Holder{
			Instance: h.Instance, Pod: h.Pod, Session: h.Session, Owner: h.Owner, Lease: h.Lease.UUID, Renewed: h.Renewed,
			HoldPending: h.Pending && h.ExpiresIn > 0, AcquiredAt: time.UnixMicro(h.AcquiredAt), HeldFor: max(0, micros(h.HeldFor)),
			ExpiresIn: micros(h.ExpiresIn), Data: jsonOf(h.Data), Traceparent: h.Traceparent,
		}}
		if h.Stopping != nil {
			share.Stopping = &store.Stopping{Reason: h.StopReason, At: time.UnixMicro(*h.Stopping)}
		}
		l.Holders[i] = share
	}
	first := &l.Holders[0]
	l.Token, l.Stopping, l.Holder = first.Token, first.Stopping, first.Holder
}

// shares returns the holders of a shared key, or nil.
func (c *lockColumns) shares() *shown {
	if c.holders == nil {
		return nil
	}
	s := &shown{}
	if json.Unmarshal([]byte(*c.holders), s) != nil || len(s.Holders) == 0 {
		return nil
	}
	return s
}

// sharedKeys names keys for handOff, which settles those that are shared.
func sharedKeys(namespaces, keys []string) []ending {
	all := make([]ending, len(keys))
	for i, key := range keys {
		all[i] = ending{namespace: namespaces[i], key: key, lease: sharedLease}
	}
	return all
}

// letIn settles keys that are shared, because a waiter that left may have blocked others.
func (o *operation) letIn(ctx context.Context, keys []string) error {
	namespaces := make([]string, len(keys))
	for i := range namespaces {
		namespaces[i] = o.id.Namespace
	}
	return o.finish(ctx, work{keys: unique(sharedKeys(namespaces, keys))}, false)
}

// Waiting reads waiters in the order of their keys and queues.
func (s *Store) Waiting(ctx context.Context, q store.WaitQuery) ([]store.Waiting, error) {
	ctx, cancel, o, err := s.begin(ctx, "waiting")
	if err != nil {
		return nil, err
	}
	defer cancel()
	if q.Namespace != "" {
		if err := s.MayShowNamespaces(); err != nil {
			return nil, err
		}
	}
	first, end := max(q.Prefix, q.After.Key), behind(q.Prefix)
	if q.Key != "" {
		first, end = max(q.Key, first), min(justBehind(q.Key), end)
	}
	return query(ctx, o, sqlWaiting,
		[]any{cmp.Or(q.Namespace, s.id.Namespace), first, end, q.After.Key, q.After.Order, min(max(q.Limit, 1), waitingMax)},
		func(rows pgx.Rows, w *store.Waiting) error {
			var limit *int
			err := rows.Scan(&w.Key, &w.Order, &w.Position, (*zeronull.Text)(&w.Pod), &w.Session, &w.Owner, &limit, &w.WaitingFor, &w.Traceparent)
			if limit != nil {
				w.Shared, w.Limit = true, *limit
			}
			return err
		})
}

// waitingMax limits the waiters of one read.
const waitingMax = 10_000
