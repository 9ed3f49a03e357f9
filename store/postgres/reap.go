package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// held names a key by whose grant it is to end.
type held struct {
	namespace, key string
	lease          uuid.UUID
	token          *int64 // nil: whatever grant rides on the lease
	// end is how the grant ends, for those who watch; nil: its lease is buried.
	end *store.Event
	// traceparent is the trace context of the release that ends the grant, or empty.
	traceparent string
	// delivered: if another instance is given the key, it has been told.
	delivered bool
}

func (h held) name() keyName { return keyName{h.namespace, h.key} }

// handOver is what the statement hand_off says of a key.
type handOver struct {
	namespace, key string
	outcome        string
	expired        []uuid.UUID // leases of waiters that stand in the way, or were passed over
	grant, lease   zeronull.UUID
	instance       zeronull.Text
	token          zeronull.Int8
	acquiredAt     zeronull.Timestamptz
	expiresAt      zeronull.Timestamptz
	hints          hints // who should look again
	watched        bool
	ended          zeronull.Int8 // the token of the grant that ended, if that is to be told
	now            zeronull.Timestamptz
	lapsed         bool // that grant had ended before, with its lease
}

// hints are waiters that should look, and the instances to which they belong.
type hints struct {
	grants    []uuid.UUID
	instances []string
}

func (h *handOver) scan(rows pgx.Rows, more ...any) error {
	return rows.Scan(append([]any{
		&h.namespace, &h.key, &h.outcome, &h.expired, &h.grant, &h.lease, &h.instance,
		&h.token, &h.acquiredAt, &h.expiresAt, &h.hints.grants, &h.hints.instances, &h.watched, &h.ended, &h.now,
	}, more...)...)
}

// Outcomes of a hand-off, besides that somebody else has the key.
const (
	handedOver     = "granted"
	freedIt        = "freed"
	expiredWaiters = "expired"
)

// hintAll tells waiters to look.
func (o *operation) hintAll(namespace string, h hints) {
	for i, grant := range h.grants {
		o.hint(namespace, h.instances[i], grant)
	}
}

// deliver brings the news of a hand-off: of a grant to a waiter of this instance
// directly, to another instance as a hint; and to those who watch how the last grant (of)
// ended and that the next began. It is called after the commit.
func (o *operation) deliver(h handOver, of held) {
	if h.watched {
		o.ended(keyName{h.namespace, h.key}, h.ended, of.end)
	}
	o.hintAll(h.namespace, h.hints)
	if h.outcome != handedOver {
		return
	}
	if h.watched {
		o.acquired(keyName{h.namespace, h.key}, h.token)
	}
	if !o.isMine(h.namespace, string(h.instance)) {
		if !of.delivered {
			o.hint(h.namespace, string(h.instance), uuid.UUID(h.grant))
		}
		return
	}
	answer := grant(h.token, h.acquiredAt, h.expiresAt, h.now, zeronull.Text(of.traceparent))
	// The server said so at some time since it was asked. The waiter does not know when
	// that was.
	answer.ExpiresIn -= time.Since(o.sent)
	o.news(store.News{
		Attempt: store.Attempt{Key: h.key, Grant: store.GrantID(h.grant)}, Lease: store.LeaseID(h.lease), Answer: answer,
	})
}

// bury declares leases dead that have expired (with revoke: also others), hands off
// the keys for which somebody waits, and drops their own waiters. A waiter may turn
// out to be expired too; it is buried in its turn, without a limit but ctx: a key
// that somebody waits for must not become free. What somebody keeps locked is left,
// and noted in blocked and passed: whoever waits for it finds it when it checks.
func (o *operation) reap(ctx context.Context, leases []uuid.UUID, revoke bool) error {
	var keys []held
	for len(leases) > 0 || len(keys) > 0 {
		dead, kept, err := o.deleteLeases(ctx, leases, revoke)
		if err != nil {
			return err
		}
		revoke = false // that was for the leases of the caller
		more, err := o.contended(ctx, dead)
		if err != nil {
			return err
		}
		if keys, leases, err = o.handOff(ctx, append(o.unblocked(leases, keys), more...)); err != nil {
			return err
		}
		if err := o.hintBehind(ctx, kept); err != nil {
			return err
		}
		if dropped := slices.Concat(dead, kept); len(dropped) > 0 {
			if err := execute(ctx, o, sqlReapWaiters, uuids(dropped)); err != nil {
				return err
			}
			o.watches.drop(dropped)
			if err := execute(ctx, o, sqlReapWatchers, uuids(dropped)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hintBehind tells those to look who wait for what is kept by leases that stand since
// now: they were told that those end later.
func (o *operation) hintBehind(ctx context.Context, leases []uuid.UUID) error {
	if len(leases) == 0 {
		return nil
	}
	type behind struct {
		namespace string
		hints     hints
	}
	namespaces, keys := o.heldBy(leases)
	found, err := query(ctx, o, sqlReapHints, []any{uuids(leases), namespaces, keys},
		func(rows pgx.Rows, b *behind) error {
			return rows.Scan(&b.namespace, &b.hints.grants, &b.hints.instances)
		})
	for _, b := range found {
		o.hintAll(b.namespace, b.hints)
	}
	return err
}

// unblocked returns the keys that may be handed off after the burial of some leases:
// all, unless one of the leases could not be buried. Then there is no telling whose
// turn it is, and they are passed.
func (o *operation) unblocked(leases []uuid.UUID, keys []held) []held {
	if !slices.ContainsFunc(leases, func(id uuid.UUID) bool { return o.blocked[id] }) {
		return keys
	}
	for _, k := range keys {
		o.pass(k)
	}
	return nil
}

func (o *operation) pass(k held) {
	if o.passed == nil {
		o.passed = make(map[keyName]bool)
	}
	o.passed[k.name()] = true
}

func (o *operation) block(lease uuid.UUID) {
	if o.blocked == nil {
		o.blocked = make(map[uuid.UUID]bool)
	}
	o.blocked[lease] = true
	o.warnLocked()
}

// reaped is what became of a lease that was to be buried, and was there.
type reaped struct {
	lease        uuid.UUID
	pending, now bool // its hold is not over: it stands, or does so since now
	// the only key that it may have held; none: any
	namespace, key *string
}

// reapBy carries out one of the statements that bury, and notes which keys it is about.
func (o *operation) reapBy(ctx context.Context, sql statement, leases any, revoke bool) ([]reaped, error) {
	done, err := query(ctx, o, sql, []any{leases, revoke}, func(rows pgx.Rows, b *reaped) error {
		return rows.Scan(&b.lease, &b.pending, &b.now, &b.namespace, &b.key)
	})
	for _, b := range done {
		if b.namespace == nil || b.key == nil {
			continue
		}
		if o.single == nil {
			o.single = make(map[uuid.UUID]keyName)
		}
		o.single[b.lease] = keyName{*b.namespace, *b.key}
	}
	return done, err
}

// heldBy returns the only keys that buried leases may hold; nil when one of them may hold
// any, or was buried by somebody else.
func (o *operation) heldBy(leases []uuid.UUID) (namespaces, keys []string) {
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

// deleteLeases deletes leases and returns those that are dead now, whoever deleted
// them, and those that could not be deleted because of a hold, if they stand since now.
func (o *operation) deleteLeases(ctx context.Context, leases []uuid.UUID, revoke bool) (dead, kept []uuid.UUID, err error) {
	if len(leases) == 0 {
		return nil, nil, nil
	}
	if len(leases) == 1 {
		return o.deleteEach(ctx, leases, leases, revoke)
	}
	done, err := o.reapBy(ctx, sqlReapMany, uuids(leases), revoke)
	if err != nil {
		return nil, nil, err
	}
	o.partly = o.partly || revoke
	left, err := query(ctx, o, sqlLeaseExisting, []any{uuids(leases)}, scanOne[uuid.UUID])
	if err != nil {
		return nil, nil, err
	}
	var pending []uuid.UUID
	for _, b := range done {
		if b.pending {
			pending = append(pending, b.lease)
		}
		if b.now {
			kept = append(kept, b.lease)
		}
	}
	isPending := func(id uuid.UUID) bool { return slices.Contains(pending, id) }
	dead, more, err := o.deleteEach(ctx, slices.DeleteFunc(slices.Clone(leases), isPending), slices.DeleteFunc(left, isPending), revoke)
	return dead, append(kept, more...), err
}

// blockedMax is for how many locked leases one operation waits; the others count as
// locked, too, and are come back to.
const blockedMax = 3

// deleteEach deletes what is left of some leases, one after the other, waiting for
// whoever has locked one. It returns what deleteLeases does.
func (o *operation) deleteEach(ctx context.Context, leases, left []uuid.UUID, revoke bool) (dead, kept []uuid.UUID, err error) {
	alive := map[uuid.UUID]bool{}
	for _, lease := range left {
		if len(o.blocked) >= blockedMax {
			o.block(lease)
			alive[lease] = true
			continue
		}
		done, err := o.reapBy(ctx, sqlReapOne, [16]byte(lease), revoke)
		if isRowLocked(err) {
			o.block(lease)
			alive[lease] = true
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if len(done) > 0 {
			o.partly = o.partly || revoke
			alive[lease] = done[0].pending
			if done[0].now {
				kept = append(kept, lease)
			}
			continue
		}
		there, err := query(ctx, o, sqlLeaseExisting, []any{[][16]byte{lease}}, scanOne[uuid.UUID])
		if err != nil {
			return nil, nil, err
		}
		alive[lease] = len(there) > 0
	}
	return slices.DeleteFunc(slices.Clone(leases), func(id uuid.UUID) bool { return alive[id] }), kept, nil
}

// contended reads the keys that dead leases hold and somebody waits for.
func (o *operation) contended(ctx context.Context, dead []uuid.UUID) ([]held, error) {
	if len(dead) == 0 {
		return nil, nil
	}
	namespaces, keys := o.heldBy(dead)
	return query(ctx, o, sqlReapContended, []any{uuids(dead), namespaces, keys}, scanHeld)
}

func scanHeld(rows pgx.Rows, h *held) error { return rows.Scan(&h.namespace, &h.key, &h.lease) }

// handOffMax is how many keys one statement hands off: a transaction should not keep
// thousands of rows locked.
const handOffMax = 500

// handOff gives keys to their first living waiters. It returns the keys for which
// only expired waiters remain, and the leases of expired waiters, to be buried.
func (o *operation) handOff(ctx context.Context, keys []held) (again []held, expired []uuid.UUID, err error) {
	for some := range slices.Chunk(keys, handOffMax) {
		stuck, err := o.aroundLocked(ctx, items(len(some)), func(i int) keyName { return some[i].name() },
			func(ctx context.Context, which []int) error {
				moreAgain, moreExpired, err := o.handOffSome(ctx, some, which)
				again, expired = append(again, moreAgain...), append(expired, moreExpired...)
				return err
			})
		if err != nil {
			return nil, nil, err
		}
		for _, i := range stuck {
			o.pass(some[i])
		}
	}
	return again, unique(expired), nil
}

func (o *operation) handOffSome(ctx context.Context, keys []held, which []int) (again []held, expired []uuid.UUID, err error) {
	namespaces, names := make([]string, len(which)), make([]string, len(which))
	leases, tokens := make([][16]byte, len(which)), make([]*int64, len(which))
	traceparents := make([]string, len(which))
	for n, i := range which {
		k := keys[i]
		namespaces[n], names[n], leases[n], tokens[n] = k.namespace, k.key, k.lease, k.token
		traceparents[n] = k.traceparent
	}
	done, err := query(ctx, o, sqlHandOff, []any{namespaces, names, leases, tokens, traceparents},
		func(rows pgx.Rows, h *handOver) error { return h.scan(rows) })
	if err != nil {
		return nil, nil, err
	}
	// One of these may be the caller's own: from now on it is not true that nothing
	// was done.
	o.partly = true
	again, expired = o.sortOut(done, keys)
	return again, expired, nil
}

// sortOut tells the news of hand-offs, and returns what must be done again once
// some leases are buried.
func (o *operation) sortOut(done []handOver, keys []held) (again []held, expired []uuid.UUID) {
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
		expired = append(expired, h.expired...)
		if h.outcome == expiredWaiters {
			again = append(again, k)
		}
	}
	return again, unique(expired)
}

// finish does what a first hand-off left: it buries expired waiters, and hands off
// the keys that had no others.
func (o *operation) finish(ctx context.Context, keys []held, expired []uuid.UUID) error {
	for len(keys) > 0 || len(expired) > 0 {
		if err := o.reap(ctx, expired, false); err != nil {
			return err
		}
		var err error
		if keys, expired, err = o.handOff(ctx, o.unblocked(expired, keys)); err != nil {
			return err
		}
	}
	return nil
}

// Bury declares an instance's own leases dead.
func (s *Store) Bury(ctx context.Context, leases []store.LeaseID) error {
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

// BuryInstance buries what an instance that runs no more has left.
func (s *Store) BuryInstance(ctx context.Context, instance string) error {
	ctx, cancel, o, err := s.begin(ctx, "revoke instance")
	if err != nil {
		return err
	}
	defer cancel()
	leases, err := query(ctx, o, sqlLeasesOf, []any{instance}, scanOne[uuid.UUID])
	if err != nil {
		return err
	}
	return o.revoke(ctx, leases)
}

// revoke buries leases that need not have expired. What somebody keeps locked is an
// error in the end: the caller tries again.
func (o *operation) revoke(ctx context.Context, leases []uuid.UUID) error {
	if err := o.reap(ctx, leases, true); err != nil {
		return err
	}
	if len(o.blocked)+len(o.passed) > 0 {
		return o.fail(errRowLocked, false)
	}
	return nil
}
