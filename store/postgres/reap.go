package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// held is a key whose grant is to end.
type held struct {
	namespace, key string
	lease          uuid.UUID
	token          *int64 // nil: any
	// end is the event for watchers. nil: the lease is reaped.
	end *store.Event
	// traceparent is the trace context of the release that ends the grant, or empty.
	traceparent string
	// delivered: the instance that gets the key was already notified in full.
	delivered bool
}

func (h held) name() keyName { return keyName{h.namespace, h.key} }

// handOver is a value of the type hand_over in the database: what became of a key. See schema/.
type handOver struct {
	namespace, key        string
	outcome               zeronull.Text
	toReap                []uuid.UUID // of waiters in the way, or passed over
	attempt, lease        zeronull.UUID
	instance              zeronull.Text
	token                 zeronull.Int8
	acquiredAt, expiresAt zeronull.Timestamptz
	slot                  *int // of a share; nil: the grant is exclusive
	cohort                []uuid.UUID
	hints                 hints
	watched               pgtype.Bool
	ended                 zeronull.Int8 // the token of the grant that ended, unless watchers know that already
	now                   zeronull.Timestamptz
	lapsed                bool // the grant had already ended with its lease
}

// hints are waiters that should check again, and their instances.
type hints struct {
	attempts  []uuid.UUID
	instances []string
}

// with returns the scan targets: first columns, then the attributes of hand_over.
func (h *handOver) with(first ...any) []any {
	return append(first, &h.outcome, &h.toReap, &h.attempt, &h.lease, &h.instance, &h.token, &h.acquiredAt, &h.expiresAt,
		&h.slot, &h.cohort, &h.hints.attempts, &h.hints.instances, &h.watched, &h.ended, &h.now)
}

const (
	handedOver     = "granted"
	freedIt        = "freed"
	expiredWaiters = "waiters_expired"
	lapsedShare    = "lapsed" // the share of a dead lease was dropped
	endedShare     = "ended"  // a release or withdrawal ended the share
)

func (o *operation) hintAll(namespace string, h hints) {
	for i, attempt := range h.attempts {
		o.hint(namespace, h.instances[i], attempt)
	}
}

// deliver sends the news of a hand-off after the commit. The waiter's instance gets the grant or a hint.
// Watchers get the end of the previous grant (of) and the next grant.
func (o *operation) deliver(h handOver, of held) {
	if h.outcome == lapsedShare {
		of.end = nil
	}
	if h.watched.Bool {
		o.ended(keyName{h.namespace, h.key}, h.ended, of.end)
	}
	o.hintAll(h.namespace, h.hints)
	if h.outcome != handedOver {
		return
	}
	if h.watched.Bool {
		o.acquired(keyName{h.namespace, h.key}, h.token)
	}
	if !o.isMine(h.namespace, string(h.instance)) {
		if !of.delivered || h.slot != nil {
			o.hint(h.namespace, string(h.instance), uuid.UUID(h.attempt))
		}
		return
	}
	answer := grant(h.token, h.acquiredAt, h.expiresAt, h.now, zeronull.Text(of.traceparent))
	// The answer is at least as old as the question, and the waiter cannot know that age.
	answer.ExpiresIn -= time.Since(o.sent)
	if h.slot != nil {
		answer.Slot = *h.slot
		o.released.Add(h.key, toWaiter) // as in askFor
	}
	answer.Cohort = halvesOf(h.cohort)
	o.news(store.News{
		Attempt: store.Attempt{Key: h.key, ID: store.AttemptID(h.attempt)}, Lease: store.LeaseID(h.lease), Answer: answer,
	})
}

// work is what remains to be done when grants end: leases to be reaped, and then keys to be handed off.
type work struct {
	leases []uuid.UUID
	keys   []held
}

// finish does this work, and all that follows from it, limited only by ctx, because a key with waiters must not become
// free: it declares expired leases dead (with revoke, also the given living ones), hands off their keys with waiters,
// and deletes waiters and watchers under them. Each hand-off can find waiters whose leases have expired, and each
// deleted waiter can have blocked others. Locked rows are recorded in blocked or passed, and the waiters' next check
// finds them.
func (o *operation) finish(ctx context.Context, todo work, revoke bool) error {
	for len(todo.leases)+len(todo.keys) > 0 {
		dead, err := o.deleteLeases(ctx, todo.leases, revoke)
		if err != nil {
			return err
		}
		revoke = false                 // only for the caller's leases
		if o.anyBlocked(todo.leases) { // the next waiter is unknown
			o.pass(todo.keys...)
			todo.keys = nil
		}
		under, err := o.waited(ctx, dead)
		if err != nil {
			return err
		}
		if todo, err = o.handOff(ctx, slices.Concat(todo.keys, under)); err != nil {
			return err
		}
		shared, err := o.deleteUnder(ctx, dead)
		if err != nil {
			return err
		}
		todo.keys = append(todo.keys, shared...)
	}
	return nil
}

// deleteUnder deletes waiters and watchers under reaped leases, and returns the shared keys that these waiters may have
// blocked.
func (o *operation) deleteUnder(ctx context.Context, dead []uuid.UUID) ([]held, error) {
	if len(dead) == 0 {
		return nil, nil
	}
	o.watches.drop(dead)
	return query(ctx, o, sqlReapRest, []any{uuids(dead)}, scanHeld)
}

func (o *operation) waited(ctx context.Context, dead []uuid.UUID) ([]held, error) {
	if len(dead) == 0 {
		return nil, nil
	}
	namespaces, names := o.onlyKeys(dead)
	return query(ctx, o, sqlReapWaited, []any{uuids(dead), namespaces, names},
		scanHeld)
}

func scanHeld(rows pgx.Rows, h *held) error { return rows.Scan(&h.namespace, &h.key, &h.lease) }

func (o *operation) anyBlocked(leases []uuid.UUID) bool {
	return slices.ContainsFunc(leases, func(id uuid.UUID) bool { return o.blocked[id] })
}

func (o *operation) pass(keys ...held) {
	if o.passed == nil {
		o.passed = make(map[keyName]bool)
	}
	for _, k := range keys {
		o.passed[k.name()] = true
	}
}

func (o *operation) block(lease uuid.UUID) {
	if o.blocked == nil {
		o.blocked = make(map[uuid.UUID]bool)
	}
	o.blocked[lease] = true
	o.warnLocked()
}

// reapBy runs a statement that reaps. It returns the reaped leases, and records those of bind:ttl locks in single.
func (o *operation) reapBy(ctx context.Context, sql statement, leases [][16]byte, revoke bool) ([]uuid.UUID, error) {
	return query(ctx, o, sql, []any{leases, revoke}, func(rows pgx.Rows, lease *uuid.UUID) error {
		var namespace, key *string
		if err := rows.Scan(lease, &namespace, &key); err != nil || namespace == nil || key == nil {
			return err
		}
		if o.single == nil {
			o.single = make(map[uuid.UUID]keyName)
		}
		o.single[*lease] = keyName{*namespace, *key}
		return nil
	})
}

// onlyKeys returns the keys of reaped leases if each lease holds a single one. It returns nil if a lease
// can hold other keys, or another session reaped it.
func (o *operation) onlyKeys(leases []uuid.UUID) (namespaces, keys []string) {
	namespaces, keys = make([]string, len(leases)), make([]string, len(leases))
	for i, lease := range leases {
		name, ok := o.single[lease]
		if !ok {
			return nil, nil
		}
		namespaces[i], keys[i] = name.namespace, name.key
	}
	return namespaces, keys
}

// deleteLeases deletes leases. It returns those that are dead now, even if another session deleted them.
func (o *operation) deleteLeases(ctx context.Context, leases []uuid.UUID, revoke bool) (dead []uuid.UUID, err error) {
	if len(leases) <= 1 {
		return o.deleteEach(ctx, leases, leases, revoke)
	}
	if _, err := o.reapBy(ctx, sqlReapMany, uuids(leases), revoke); err != nil {
		return nil, err
	}
	o.partly = o.partly || revoke
	left, err := query(ctx, o, sqlLeaseExisting, []any{uuids(leases)}, scanOne[uuid.UUID])
	if err != nil {
		return nil, err
	}
	return o.deleteEach(ctx, leases, left, revoke)
}

// blockedMax limits the locked leases for which an operation waits. Further ones count as locked at once.
const blockedMax = 3

// deleteEach deletes the leases in left one by one, and waits for locked ones.
func (o *operation) deleteEach(ctx context.Context, leases, left []uuid.UUID, revoke bool) (dead []uuid.UUID, err error) {
	alive := map[uuid.UUID]bool{}
	for _, lease := range left {
		if len(o.blocked) >= blockedMax {
			o.block(lease)
			alive[lease] = true
			continue
		}
		done, err := o.reapBy(ctx, sqlReapOne, [][16]byte{lease}, revoke)
		if isRowLocked(err) {
			o.block(lease)
			alive[lease] = true
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(done) > 0 {
			o.partly = o.partly || revoke
			continue
		}
		there, err := query(ctx, o, sqlLeaseExisting, []any{[][16]byte{lease}}, scanOne[uuid.UUID])
		if err != nil {
			return nil, err
		}
		alive[lease] = len(there) > 0
	}
	return slices.DeleteFunc(slices.Clone(leases), func(id uuid.UUID) bool { return alive[id] }), nil
}

// handOffMax limits the keys of one hand-off, so that no transaction locks thousands of rows.
const handOffMax = 500

// handOff gives keys to their first living waiters. It returns the leases of expired waiters, and the keys that had only
// such waiters.
func (o *operation) handOff(ctx context.Context, keys []held) (next work, err error) {
	for some := range slices.Chunk(keys, handOffMax) {
		locked, err := o.aroundLocked(ctx, items(len(some)), func(i int) keyName { return some[i].name() },
			func(ctx context.Context, which []int) error { return o.handOffSome(ctx, some, which, &next) })
		if err != nil {
			return work{}, err
		}
		for _, i := range locked {
			o.pass(some[i])
		}
	}
	next.leases = unique(next.leases)
	return next, nil
}

func (o *operation) handOffSome(ctx context.Context, keys []held, which []int, next *work) error {
	namespaces, names := make([]string, len(which)), make([]string, len(which))
	leases, tokens := make([][16]byte, len(which)), make([]*int64, len(which))
	traceparents := make([]string, len(which))
	for n, i := range which {
		k := keys[i]
		namespaces[n], names[n], leases[n], tokens[n] = k.namespace, k.key, k.lease, k.token
		traceparents[n] = k.traceparent
	}
	done, err := query(ctx, o, sqlHandOff, []any{namespaces, names, leases, tokens, traceparents},
		func(rows pgx.Rows, h *handOver) error { return rows.Scan(h.with(&h.namespace, &h.key)...) })
	if err != nil {
		return err
	}
	// A hand-off may have ended the caller's own grant.
	o.partly = true
	o.sortOut(done, keys, next)
	return nil
}

// sortOut sends the news of hand-offs, and adds to next what they leave to be done.
func (o *operation) sortOut(done []handOver, keys []held, next *work) {
	byName := make(map[keyName]held, len(keys))
	for _, k := range keys {
		byName[k.name()] = k
	}
	for _, h := range done {
		k := byName[keyName{h.namespace, h.key}]
		if h.lapsed {
			k.end = nil
		}
		o.deliver(h, k)
		next.leases = append(next.leases, h.toReap...)
		if h.outcome == expiredWaiters {
			next.keys = append(next.keys, k)
		}
	}
}

// reapAndHandOff reaps expired leases, and hands off keys whose leases are gone. A min_hold keeps its key
// until a waiter checks.
func (o *operation) reapAndHandOff(ctx context.Context, expired []uuid.UUID, left []held) error {
	if err := o.finish(ctx, work{leases: unique(expired)}, false); err != nil {
		return err
	}
	return o.finish(ctx, work{keys: unique(left)}, false) // a lease that is locked does not keep these
}

// Revoke revokes an instance's own leases.
func (s *Store) Revoke(ctx context.Context, leases []store.LeaseID) error {
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "revoke", len(leases))
	if err != nil {
		return err
	}
	defer cancel()
	return o.revoke(ctx, leases)
}

// ReapInstance revokes the leases of an instance that no longer runs.
func (s *Store) ReapInstance(ctx context.Context, instance string) error {
	ctx, cancel, o, err := s.begin(ctx, "revoke instance")
	if err != nil {
		return err
	}
	defer cancel()
	if s.readsOnly.Load() {
		return nil // see reader.go: a role that may only read leaves nothing behind
	}
	leases, err := query(ctx, o, sqlLeasesOf, []any{instance}, scanOne[uuid.UUID])
	if err != nil {
		return err
	}
	return o.revoke(ctx, leases)
}

// revoke reaps leases, also living ones. If a row is locked, it returns an error, so that the caller tries again.
func (o *operation) revoke(ctx context.Context, leases []uuid.UUID) error {
	if err := o.finish(ctx, work{leases: leases}, true); err != nil {
		return err
	}
	if len(o.blocked)+len(o.passed) > 0 {
		return o.fail(errRowLocked, false)
	}
	return nil
}
