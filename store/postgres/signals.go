package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// signalsMax limits the signals of one read. Each renewal reports that there are more.
const signalsMax = 10_000

var signalKinds = map[store.SignalKind]string{store.Stop: "stop", store.Break: "break"}

type signalled struct {
	ord      int
	held     bool
	token    zeronull.Int8
	watched  *bool
	stopping zeronull.Timestamptz // set if the stop is new
	notify   zeronull.Text        // the instance that should read the signal
	again    bool                 // the same request was sent before, perhaps with another reason
	reaped   zeronull.UUID        // the lease that a break deleted
	hints    hints
}

func (r *signalled) scan(rows pgx.Rows) error {
	return rows.Scan(&r.ord, &r.held, &r.token, &r.watched, &r.stopping, &r.notify, &r.again, &r.reaped, &r.hints.attempts, &r.hints.instances)
}

// Signal sends requests to holders.
func (s *Store) Signal(ctx context.Context, signals []store.Signal) ([]store.ClaimStatus, error) {
	if len(signals) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "signal", len(signals))
	if err != nil {
		return nil, err
	}
	defer cancel()
	found := make([]store.ClaimStatus, len(signals))
	name := func(i int) keyName { return keyName{s.id.Namespace, signals[i].Key} }
	locked, err := o.aroundLocked(ctx, items(len(signals)), name, func(ctx context.Context, which []int) error {
		return o.signal(ctx, signals, which, found)
	})
	if err != nil {
		return nil, err
	}
	for _, i := range locked {
		found[i] = store.ClaimRowLocked
	}
	return found, nil
}

func (o *operation) signal(ctx context.Context, signals []store.Signal, which []int, statuses []store.ClaimStatus) error {
	keys, tokens := make([]string, len(which)), make([]int64, len(which))
	kinds, reasons := make([]string, len(which)), make([]*string, len(which))
	for n, i := range which {
		g := &signals[i]
		keys[n], tokens[n], kinds[n], reasons[n] = g.Key, g.Token, signalKinds[g.Kind], g.Reason
	}
	namespace := o.id.Namespace
	rows, err := query(ctx, o, sqlSignal, []any{namespace, o.notAfter, keys, tokens, kinds, reasons},
		func(rows pgx.Rows, r *signalled) error { return r.scan(rows) })
	if err != nil {
		return err
	}
	for _, i := range which {
		statuses[i] = store.UnknownToken // a shared key has a row for each holder that is meant
	}
	notified := map[string]bool{}
	var broken []ending
	for n := range rows {
		r := &rows[n]
		i := which[r.ord-1]
		if !r.held {
			continue
		}
		statuses[i], o.partly = store.Holds, true
		o.hintAll(namespace, r.hints)
		instance, stop := string(r.notify), time.Time(r.stopping)
		near, watched := instance == "" || o.isMine(namespace, instance), !stop.IsZero() && *r.watched
		// If a client repeats its request, the holder may learn of it with its next renewal.
		quiet := r.again && (!near || watched) && !o.again.due(againEach)
		if instance != "" && !notified[instance] && (near || !quiet) {
			notified[instance] = true
			o.hintSignals(instance)
		}
		if watched && !quiet {
			o.event(namespace, store.Event{
				Kind: store.EventStopping, Key: signals[i].Key, Token: int64(r.token),
				Stopping: &store.Stopping{Reason: signals[i].Reason, At: stop},
			})
		}
		if r.reaped != (zeronull.UUID{}) {
			k := ending{namespace: namespace, key: signals[i].Key, lease: uuid.UUID(r.reaped)}
			if k.lease != sharedLease {
				k.token = (*int64)(&r.token)
			}
			broken = append(broken, k)
		}
	}
	// If a row is locked now, the lock is broken nevertheless, because its lease is dead. Checks find this.
	return o.finish(ctx, work{keys: unique(broken)}, false)
}

// hintSignals asks an instance of this namespace, perhaps this one, to read its signals.
func (o *operation) hintSignals(instance string) {
	namespace := o.id.Namespace
	if o.isMine(namespace, instance) {
		o.report(store.News{Signals: true})
		return
	}
	o.notifier.send(channelOf(namespace, instance), signalsWord)
}

// Signals returns the requests to holders under leases.
func (s *Store) Signals(ctx context.Context, leases []store.LeaseID) ([]store.Signal, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "signals", len(leases))
	if err != nil {
		return nil, err
	}
	defer cancel()
	return query(ctx, o, sqlSignalsOf, []any{uuids(leases), signalsMax}, func(rows pgx.Rows, g *store.Signal) error {
		var kind string
		if err := rows.Scan(&g.ID, &kind, &g.Key, &g.Token, &g.Reason, &g.At); err != nil {
			return err
		}
		g.Kind = store.Stop
		if kind == signalKinds[store.Break] {
			g.Kind = store.Break
		}
		return nil
	})
}

// Acknowledge deletes signals that were read. A signal with a locked row stays, and is read again.
func (s *Store) Acknowledge(ctx context.Context, signals []store.SignalID) error {
	if len(signals) == 0 {
		return nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "acknowledge signals", len(signals))
	if err != nil {
		return err
	}
	defer cancel()
	ids := make([]int64, len(signals))
	for i, id := range signals {
		ids[i] = int64(id)
	}
	return execute(ctx, o, sqlSignalsAcknowledged, ids)
}
