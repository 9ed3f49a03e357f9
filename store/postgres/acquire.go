package postgres

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// acquireRounds limits how often an acquire looks at a key that changes hands. After that, the key counts as held.
const acquireRounds = 5

// Acquire takes keys that are free or whose holders are dead.
func (s *Store) Acquire(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	return s.askAll(ctx, "acquire", asks, (*asking).take)
}

// askAll is Acquire and Enqueue: do answers the asks.
func (s *Store) askAll(ctx context.Context, name string, asks []store.Ask, do func(*asking, context.Context) ([]store.Answer, error)) ([]store.Answer, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, name, len(asks))
	if err != nil {
		return nil, err
	}
	defer cancel()
	answers, err := do(newAsking(o, asks), ctx)
	o.noteLate(err, len(asks), func(i int) store.AttemptID { return asks[i].ID })
	return answers, err
}

// asking contains the asks of a call, their answers, and the indexes of open asks.
type asking struct {
	*operation
	asks    []store.Ask
	answers []store.Answer
	open    []int
	dead    map[int][]uuid.UUID // expired leases that block open asks; they are reaped before the next try
	unheld  []ending            // open keys that are handed off before the next try: their lease is gone, or the key is shared
	queued  map[int]bool        // open asks that have a queue position, because a repeat has moved it
}

func newAsking(o *operation, asks []store.Ask) *asking {
	return &asking{
		operation: o, asks: asks, answers: make([]store.Answer, len(asks)), open: items(len(asks)),
		dead: make(map[int][]uuid.UUID), queued: make(map[int]bool),
	}
}

func (t *asking) name(i int) keyName { return keyName{t.id.Namespace, t.asks[i].Key} }

// take takes what is free in one statement. It reads who holds the rest, and asks once more, with the rows locked, for what has become free and for what
// dead leases held.
func (t *asking) take(ctx context.Context) ([]store.Answer, error) {
	if err := t.takeFree(ctx); err != nil {
		return nil, err
	}
	for range acquireRounds {
		if err := t.readHolders(ctx); err != nil {
			return nil, err
		}
		if len(t.open) == 0 {
			return t.answers, nil
		}
		if err := t.ask(ctx, false); err != nil {
			return nil, err
		}
		if len(t.open) == 0 {
			return t.answers, nil
		}
	}
	for _, i := range t.open {
		t.answers[i] = store.Answer{Outcome: store.Held, Lock: store.Lock{Key: t.asks[i].Key}}
	}
	return t.answers, nil
}

// forOpen runs a statement for the open asks, and answers those whose rows are locked.
func (t *asking) forOpen(ctx context.Context, do func(context.Context, []int) error) error {
	locked, err := t.aroundLocked(ctx, t.open, t.name, do)
	if err != nil {
		return err
	}
	for _, i := range locked {
		if err := t.isLocked(i); err != nil {
			return err
		}
	}
	t.reopen()
	return nil
}

// isLocked answers an ask whose row, or whose holder's, is locked. RowLocked says that nothing changed.
func (t *asking) isLocked(i int) error {
	if t.queued[i] {
		return t.fail(errRowLocked, false) // unknown, see partly
	}
	t.answerAsk(i, store.Answer{Outcome: store.RowLocked})
	return nil
}

// answerAsk answers an ask. After a grant or a queue position, a failure leaves the outcome unknown.
func (t *asking) answerAsk(i int, a store.Answer) {
	t.answers[i] = a
	t.partly = t.partly || a.Outcome == store.Granted || a.Outcome == store.Queued
}

func (t *asking) reopen() {
	open := t.open[:0]
	for _, i := range t.open {
		if t.answers[i].Outcome == 0 {
			open = append(open, i)
		}
	}
	t.open = open
}

// takeFree takes free keys in one statement, for the first ask of each key. The SQL function ask takes keys with a min_hold,
// and shares.
func (t *asking) takeFree(ctx context.Context) error {
	return t.forOpen(ctx, func(ctx context.Context, which []int) error {
		seen := make(map[string]bool, len(which))
		which = slices.DeleteFunc(slices.Clone(which), func(i int) bool {
			a := &t.asks[i]
			again := seen[a.Key]
			seen[a.Key] = true
			return again || a.MinHold > 0 || a.Shared
		})
		switch {
		case len(which) == 0:
			return nil
		case !t.underOneLease(which):
			return t.takeMany(ctx, which, sqlAcquireMany, t.argsOfMany(which))
		case len(which) == 1:
			return t.takeOne(ctx, which[0])
		case t.haveRows(which):
			return t.takeMany(ctx, which, sqlAcquireRows, t.argsOfSession(which))
		}
		return t.takeMany(ctx, which, sqlAcquireSession, t.argsOfSession(which))
	})
}

// haveRows reports whether the keys of all these asks were released here a short time ago, so they have rows.
func (t *asking) haveRows(which []int) bool {
	return !slices.ContainsFunc(which, func(i int) bool {
		return !t.recent.haveRow(t.asks[i].Key)
	})
}

// underOneLease: all asks are for session locks under the same lease, which is the usual case.
func (t *asking) underOneLease(which []int) bool {
	lease := t.asks[which[0]].Lease
	return !slices.ContainsFunc(which, func(i int) bool { return t.asks[i].TTL > 0 || t.asks[i].Lease != lease })
}

// taken is a row of the statements that take free keys.
type taken struct {
	key                   string
	token                 zeronull.Int8
	acquiredAt, expiresAt zeronull.Timestamptz
	watched, keepable     bool
}

func (t *asking) won(i int, r *taken) {
	t.answerAsk(i, store.Answer{
		Outcome: store.Granted, Token: int64(r.token), AcquiredAt: time.Time(r.acquiredAt),
		ExpiresIn: time.Time(r.expiresAt).Sub(time.Time(r.acquiredAt)), Keepable: r.keepable,
	})
	if r.watched {
		t.tellAcquired(t.name(i), r.token)
	}
}

func (t *asking) takeOne(ctx context.Context, i int) error {
	a, sql := &t.asks[i], sqlAcquireOne
	if t.haveRows([]int{i}) {
		sql = sqlAcquireRow
	}
	found, err := query(ctx, t.operation, sql,
		[]any{
			t.id.Namespace, a.Key, [16]byte(a.Lease), [16]byte(a.ID), a.Session, a.Owner,
			textOf(a.Data), a.Traceparent, t.notAfter, lastOf(a),
		},
		func(rows pgx.Rows, r *taken) error {
			return rows.Scan(&r.token, &r.acquiredAt, &r.expiresAt, &r.watched, &r.keepable)
		})
	if err != nil || len(found) == 0 {
		return err
	}
	t.unflushed.flushed(t.sent)
	t.won(i, &found[0])
	return nil
}

func (t *asking) takeMany(ctx context.Context, which []int, sql statement, args []any) error {
	found, err := query(ctx, t.operation, sql, args, func(rows pgx.Rows, r *taken) error {
		return rows.Scan(&r.key, &r.token, &r.acquiredAt, &r.expiresAt, &r.watched, &r.keepable)
	})
	if err != nil || len(found) == 0 {
		return err
	}
	t.unflushed.flushed(t.sent)
	byKey := make(map[string]int, len(which))
	for _, i := range which {
		byKey[t.asks[i].Key] = i
	}
	for n := range found {
		t.won(byKey[found[n].key], &found[n])
	}
	return nil
}

func (t *asking) argsOfSession(which []int) []any {
	c := newAskColumns(t.asks, which)
	return []any{
		t.id.Namespace, c.leases[0], c.keys, c.attempts, c.sessions,
		orNull(c.owners, ""), orNull(c.datas, nil), orNull(c.traceparents, ""), t.notAfter, orNull(c.lasts, 0),
	}
}

func (t *asking) argsOfMany(which []int) []any {
	c, id := newAskColumns(t.asks, which), t.id
	byTTL := make([]bool, len(which))
	var made [][16]byte
	var ttls []time.Duration
	for n, ttl := range c.ttls {
		if ttl > 0 {
			byTTL[n] = true
			c.leases[n] = uuid.New()
			made, ttls = append(made, c.leases[n]), append(ttls, ttl)
		}
	}
	return []any{
		id.Namespace, c.keys, c.leases, byTTL, c.attempts, c.sessions, c.owners, c.datas, c.traceparents,
		made, ttls, id.Instance, id.Pod, t.notAfter, orNull(c.lasts, 0),
	}
}

// orNull returns the column, or null if all its items are none. A null is faster to send and to read.
func orNull[T comparable](column []T, none T) []T {
	if slices.ContainsFunc(column, func(item T) bool { return item != none }) {
		return column
	}
	return nil
}

// readHolders asks who holds the key of each ask that takeFree left open. A living holder is the answer. A dead one is noted for a reap. A key
// that has become free meanwhile, or has a dead holder, stays open, as do asks for shares and for shared keys: the SQL function ask decides them.
func (t *asking) readHolders(ctx context.Context) error {
	which := slices.DeleteFunc(slices.Clone(t.open), func(i int) bool { return t.asks[i].Shared })
	if len(which) == 0 {
		return nil
	}
	keys, leases, attempts := make([]string, len(which)), make([][16]byte, len(which)), make([][16]byte, len(which))
	for n, i := range which {
		keys[n], leases[n], attempts[n] = t.asks[i].Key, t.asks[i].Lease, t.asks[i].ID
	}
	readings, err := t.read(ctx, keys, leases, attempts, 0)
	if err != nil {
		return err
	}
	for n, i := range which {
		r := &readings[n]
		switch {
		case r.heldBy(t.asks[i].ID): // a repeated attempt
			if r.isKeepable() {
				continue // the SQL function ask decides whether it still is
			}
			if r.renewedByOwner() || string(r.instance) == t.id.Instance {
				t.answerAsk(i, r.granted(r.handedBy))
			} // otherwise the SQL function ask records the second delivery
		case t.asks[i].TTL == 0 && !r.askerLives:
			t.answerAsk(i, store.Answer{Outcome: store.LeaseLost})
		case uuid.UUID(r.heldUnder) == sharedLease: // the SQL function ask reads all shares
		case r.keptQuiet():
			t.answerAsk(i, store.Answer{Outcome: store.Quiet, QuietFor: r.expiresIn()})
		case r.held():
			t.answerAsk(i, store.Answer{Outcome: store.Held, Lock: r.lock(keys[n])})
		case r.heldUnder == zeronull.UUID{}: // free
		case r.lease != zeronull.UUID{} || r.contended: // otherwise the SQL function ask takes the key
			t.behindDead(i, r.heldUnder, r.lease)
		}
	}
	t.reopen()
	return t.reapDead(ctx)
}

// behindDead records that the lease of the holder must be reaped for ask i. If that lease is gone (found is
// zero), the key must be handed off.
func (t *asking) behindDead(i int, lease, found zeronull.UUID) {
	if found != (zeronull.UUID{}) {
		t.dead[i] = []uuid.UUID{uuid.UUID(lease)}
	} else {
		t.unheld = append(t.unheld, ending{namespace: t.name(i).namespace, key: t.asks[i].Key, lease: uuid.UUID(lease)})
	}
}

// behindShares records that a shared key must be settled for ask i, after its expired leases are reaped.
func (t *asking) behindShares(i int, toReap []uuid.UUID) {
	t.dead[i] = toReap
	t.unheld = append(t.unheld, ending{namespace: t.name(i).namespace, key: t.asks[i].Key, lease: sharedLease})
}

// reapDead reaps dead leases, and hands off keys whose leases are gone. An ask behind a locked row is
// answered RowLocked.
func (t *asking) reapDead(ctx context.Context) error {
	dead, unheld := t.dead, t.unheld
	t.dead, t.unheld = make(map[int][]uuid.UUID), nil
	if err := t.reapAndHandOff(ctx, slices.Concat(slices.Collect(maps.Values(dead))...), unheld); err != nil {
		return err
	}
	for i, leases := range dead {
		if slices.ContainsFunc(leases, func(id uuid.UUID) bool { return t.blocked[id] }) || t.notHandedOff[t.name(i)] {
			if err := t.isLocked(i); err != nil {
				return err
			}
		}
	}
	t.reopen()
	return nil
}

type asked struct {
	lockColumns
	ord      int
	state    string
	dead     zeronull.UUID
	toReap   []uuid.UUID
	position zeronull.Int8
	result   *string // set for a skipped waiter
	watched  bool
	gone     zeronull.Int8 // the token of the dead holder's grant
	// handedBy is the trace context of the release that handed over the grant. Only a repeated attempt gets it here.
	handedBy      zeronull.Text
	cohort        []uuid.UUID
	alone         *bool
	keepableGrant bool // while lockColumns shows the holder's
	recall        zeronull.Text
}

// ask runs the SQL function ask for the open keys, with their rows locked. With mayWait it also enqueues. Keys
// whose holders must be reaped stay open.
func (t *asking) ask(ctx context.Context, mayWait bool) error {
	err := t.forOpen(ctx, func(ctx context.Context, which []int) error { return t.askFor(ctx, which, mayWait) })
	if err != nil {
		return err
	}
	return t.reapDead(ctx)
}

func (t *asking) askFor(ctx context.Context, which []int, mayWait bool) error {
	c := newAskColumns(t.asks, which)
	id := t.id
	found, err := query(ctx, t.operation, sqlAsk,
		[]any{
			id.Namespace, t.notAfter, mayWait, id.Instance, id.Pod, c.keys, c.attempts, c.leases, c.ttls,
			c.minHolds, c.skips, c.sessions, c.owners, c.datas, c.traceparents, c.limits, orNull(c.lasts, 0),
		},
		func(rows pgx.Rows, r *asked) error {
			return rows.Scan(r.with(&r.ord, &r.state, &r.dead, &r.toReap, &r.position, &r.result, &r.watched, &r.gone, &r.handedBy, &r.cohort, &r.alone, &r.keepableGrant, &r.recall)...)
		})
	if err != nil {
		return err
	}
	for n := range found {
		r := &found[n]
		i := which[r.ord-1]
		switch r.state {
		case "granted":
			answer := r.granted(r.handedBy)
			answer.Keepable = r.keepableGrant
			t.answerAsk(i, answer)
			if t.asks[i].Shared {
				t.recent.shared(t.asks[i].Key)
			}
			if r.watched {
				t.tellEnded(t.name(i), r.gone, nil)
				t.tellAcquired(t.name(i), r.token)
			}
		case "queued":
			t.answerAsk(i, store.Answer{
				Outcome: store.Queued, Lock: r.asHeld(t.asks[i].Key), Position: int(r.position),
				Cohort: halvesOf(r.cohort), Alone: r.alone != nil && *r.alone,
			})
			t.recall(t.name(i), r.recall)
		case "skipped":
			t.answerAsk(i, store.Answer{Outcome: store.Skipped, Result: jsonOf(r.result)})
		case "lost":
			t.answerAsk(i, store.Answer{Outcome: store.LeaseLost})
		case "dead":
			if r.position > 0 {
				t.queued[i], t.partly = true, true
			}
			if r.toReap == nil && uuid.UUID(r.dead) != sharedLease {
				t.behindDead(i, r.dead, r.lease)
			} else {
				t.behindShares(i, r.toReap)
			}
		case "quiet":
			t.quiet.note(t.log, r.expiresIn())
			t.answerAsk(i, store.Answer{Outcome: store.Quiet, QuietFor: r.expiresIn()})
		case "mismatch":
			t.answerAsk(i, store.Answer{Outcome: store.LimitMismatch, Lock: r.asHeld(t.asks[i].Key)})
		case "held":
			switch {
			case r.keptQuiet():
				t.answerAsk(i, store.Answer{Outcome: store.Quiet, QuietFor: r.expiresIn()})
			case t.asks[i].Shared || r.holders != nil: // otherwise readHolders answers it
				t.answerAsk(i, store.Answer{Outcome: store.Held, Lock: r.asHeld(t.asks[i].Key)})
			}
		}
	}
	return nil
}

type askColumns struct {
	keys, sessions, owners, traceparents []string
	attempts, leases                     [][16]byte
	ttls, minHolds                       []time.Duration
	skips                                []bool
	datas                                []*string
	limits                               []*int
	lasts                                []int64
}

func newAskColumns(asks []store.Ask, which []int) askColumns {
	n := len(which)
	c := askColumns{
		keys: make([]string, n), sessions: make([]string, n), owners: make([]string, n), traceparents: make([]string, n),
		attempts: make([][16]byte, n), leases: make([][16]byte, n), ttls: make([]time.Duration, n), datas: make([]*string, n),
		minHolds: make([]time.Duration, n), skips: make([]bool, n), limits: make([]*int, n), lasts: make([]int64, n),
	}
	for n, i := range which {
		a := &asks[i]
		c.keys[n], c.attempts[n], c.leases[n], c.ttls[n] = a.Key, a.ID, a.Lease, a.TTL
		c.sessions[n], c.owners[n], c.traceparents[n] = a.Session, a.Owner, a.Traceparent
		c.datas[n], c.minHolds[n], c.skips[n], c.limits[n] = textOf(a.Data), a.MinHold, a.Skip, limitOf(a)
		c.lasts[n] = lastOf(a)
	}
	return c
}

// lastOf is the token with which the grant may be keepable. Only the exclusive locks of sessions are, without a MinHold and Skip.
func lastOf(a *store.Ask) int64 {
	if a.Shared || a.TTL > 0 || a.MinHold > 0 || a.Skip {
		return 0
	}
	return a.Last
}

// textOf converts JSON to the database's form: text, or null.
func textOf(data []byte) *string {
	if data == nil {
		return nil
	}
	text := string(data)
	return &text
}

// jsonOf converts text of the database to JSON. Answers contain the result unchanged, so invalid JSON (from
// an edited row) becomes nil.
func jsonOf(text *string) []byte {
	if text == nil || !json.Valid([]byte(*text)) {
		return nil
	}
	return []byte(*text)
}

func unique[T comparable](items []T) []T {
	seen := make(map[T]bool, len(items))
	kept := items[:0]
	for _, item := range items {
		if !seen[item] {
			seen[item] = true
			kept = append(kept, item)
		}
	}
	return kept
}
