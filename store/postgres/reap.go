package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/store"
)

// work is what remains to be done when grants end: leases to be reaped, and then keys to be handed off.
type work struct {
	leases []uuid.UUID
	keys   []ending
}

// finish does this work, and all that follows from it, limited only by ctx, because a key with waiters must not become
// free: it declares expired leases dead (with revoke, also the given living ones), hands off their keys with waiters,
// and deletes waiters and watchers under them. Each hand-off can find waiters whose leases have expired, and each
// deleted waiter can have blocked others. Locked rows are recorded in blocked or notHandedOff, and the waiters' next check
// finds them.
func (o *operation) finish(ctx context.Context, todo work, revoke bool) error {
	for len(todo.leases)+len(todo.keys) > 0 {
		dead, err := o.deleteLeases(ctx, todo.leases, revoke)
		if err != nil {
			return err
		}
		revoke = false                 // only for the caller's leases
		if o.anyBlocked(todo.leases) { // the next waiter is unknown
			o.noteNotHandedOff(todo.keys...)
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
func (o *operation) deleteUnder(ctx context.Context, dead []uuid.UUID) ([]ending, error) {
	if len(dead) == 0 {
		return nil, nil
	}
	o.watches.drop(dead)
	return query(ctx, o, sqlReapRest, []any{uuids(dead)}, scanEnding)
}

func (o *operation) waited(ctx context.Context, dead []uuid.UUID) ([]ending, error) {
	if len(dead) == 0 {
		return nil, nil
	}
	namespaces, names := o.onlyKeys(dead)
	return query(ctx, o, sqlReapWaited, []any{uuids(dead), namespaces, names},
		scanEnding)
}

func scanEnding(rows pgx.Rows, e *ending) error { return rows.Scan(&e.namespace, &e.key, &e.lease) }

func (o *operation) anyBlocked(leases []uuid.UUID) bool {
	return slices.ContainsFunc(leases, func(id uuid.UUID) bool { return o.blocked[id] })
}

func (o *operation) noteNotHandedOff(keys ...ending) {
	if o.notHandedOff == nil {
		o.notHandedOff = make(map[keyName]bool)
	}
	for _, k := range keys {
		o.notHandedOff[k.name()] = true
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
	existing, err := query(ctx, o, sqlLeaseExisting, []any{uuids(leases)}, scanOne[uuid.UUID])
	if err != nil {
		return nil, err
	}
	return o.deleteEach(ctx, leases, existing, revoke)
}

// blockedMax limits the locked leases for which an operation waits. Further ones count as locked at once.
const blockedMax = 3

// deleteEach deletes the existing ones of these leases one by one, and waits for locked ones.
func (o *operation) deleteEach(ctx context.Context, leases, existing []uuid.UUID, revoke bool) (dead []uuid.UUID, err error) {
	alive := map[uuid.UUID]bool{}
	for _, lease := range existing {
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
func (o *operation) handOff(ctx context.Context, keys []ending) (next work, err error) {
	for some := range slices.Chunk(keys, handOffMax) {
		locked, err := o.aroundLocked(ctx, items(len(some)), func(i int) keyName { return some[i].name() },
			func(ctx context.Context, which []int) error { return o.handOffSome(ctx, some, which, &next) })
		if err != nil {
			return work{}, err
		}
		for _, i := range locked {
			o.noteNotHandedOff(some[i])
		}
	}
	next.leases = unique(next.leases)
	return next, nil
}

func (o *operation) handOffSome(ctx context.Context, keys []ending, which []int, next *work) error {
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

// sortOut tells everyone whom hand-offs concern (tell), and adds to next what they leave to be done.
func (o *operation) sortOut(done []handOver, keys []ending, next *work) {
	byName := make(map[keyName]ending, len(keys))
	for _, k := range keys {
		byName[k.name()] = k
	}
	for _, h := range done {
		of := byName[keyName{h.namespace, h.key}]
		if h.lapsed {
			of.how = nil
		}
		o.tell(h, of)
		next.leases = append(next.leases, h.toReap...)
		if h.outcome == expiredWaiters {
			next.keys = append(next.keys, of)
		}
	}
}

// reapAndHandOff reaps expired leases, and hands off unheld keys, whose leases are gone. A min_hold keeps its key
// until a waiter checks.
func (o *operation) reapAndHandOff(ctx context.Context, expired []uuid.UUID, unheld []ending) error {
	if err := o.finish(ctx, work{leases: unique(expired)}, false); err != nil {
		return err
	}
	return o.finish(ctx, work{keys: unique(unheld)}, false) // a lease that is locked does not keep these
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
	if len(o.blocked)+len(o.notHandedOff) > 0 {
		return o.fail(errRowLocked, false)
	}
	return nil
}
