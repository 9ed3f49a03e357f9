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

// Enqueue does as Acquire, and queues the asks for held keys.
func (s *Store) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	return s.askAll(ctx, "enqueue", asks, (*asking).enqueue)
}

// enqueue takes keys that are free or whose holders are dead, and enqueues for the others. While it finds
// dead holders, only ctx limits it.
func (t *asking) enqueue(ctx context.Context) ([]store.Answer, error) {
	if slices.ContainsFunc(t.asks, func(a store.Ask) bool { return !a.NoNews }) {
		t.listener.ready(ctx, t.ear)
	}
	for len(t.open) > 0 {
		if err := t.ask(ctx, true); err != nil {
			return nil, err
		}
	}
	return t.answers, nil
}

type waitRow struct {
	lockColumns
	ord       int
	queued    bool
	waitsAt   zeronull.Text // the instance of the queue position
	skipped   bool
	result    *string // set for a skipped waiter
	heldUnder zeronull.UUID
	// settle: the key is shared and must be settled, after the leases in toReap are reaped. sharedWait: the
	// key is not shared, and a shared waiter waits. Both are null otherwise.
	settle, sharedWait *bool
	toReap             []uuid.UUID
	// handedBy is the trace context of the release that handed the lock over.
	handedBy zeronull.Text
}

func (o *operation) answer(ctx context.Context, w *waitRow, wait store.Attempt) (store.Answer, error) {
	switch {
	case w.queued:
		return store.Answer{Outcome: store.Queued, Lock: w.lock(wait.Key)}, nil
	case w.skipped && !w.heldBy(wait.ID): // otherwise an Acquire repeated the attempt
		return store.Answer{Outcome: store.Skipped, Result: jsonOf(w.result)}, nil
	case !w.heldBy(wait.ID):
		return store.Answer{Outcome: store.Gone}, nil
	case wait.Undelivered || w.renewedByOwner() || string(w.instance) == o.id.Instance:
		return w.granted(w.handedBy), nil
	}
	// Another instance repeated the attempt and was granted the lock.
	delivered, err := query(ctx, o, sqlNoteDelivery, []any{o.id.Namespace, wait.Key, [16]byte(wait.ID)}, scanOne[bool])
	switch {
	case isRowLocked(err):
		return store.Answer{Outcome: store.Queued, Lock: w.lock(wait.Key)}, nil // check again later
	case err != nil:
		return store.Answer{}, err
	case len(delivered) == 0:
		return store.Answer{Outcome: store.Gone}, nil
	}
	return w.granted(w.handedBy), nil
}

func (o *operation) check(ctx context.Context, waits []store.Attempt) ([]waitRow, error) {
	keys, ids := columnsOf(waits)
	found, err := query(ctx, o, sqlCheck, []any{o.id.Namespace, keys, ids},
		func(rows pgx.Rows, w *waitRow) error {
			return rows.Scan(w.with(&w.ord, &w.queued, &w.waitsAt, &w.skipped, &w.result, &w.heldUnder, &w.handedBy, &w.settle, &w.toReap, &w.sharedWait)...)
		})
	if err != nil {
		return nil, err
	}
	if len(found) != len(waits) {
		return nil, o.fail(errShort, true)
	}
	inOrder := make([]waitRow, len(waits))
	for _, w := range found {
		inOrder[w.ord-1] = w
	}
	return inOrder, nil
}

func columnsOf(attempts []store.Attempt) (keys []string, ids [][16]byte) {
	keys, ids = make([]string, len(attempts)), make([][16]byte, len(attempts))
	for i, a := range attempts {
		keys[i], ids[i] = a.Key, a.ID
	}
	return keys, ids
}

// Check returns what became of waiters. It hands off the key of a dead holder if that is still missing.
func (s *Store) Check(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	if len(waits) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "check", len(waits))
	if err != nil {
		return nil, err
	}
	defer cancel()
	rows, err := o.check(ctx, waits)
	if err != nil {
		return nil, err
	}
	var dead []uuid.UUID // expired
	var unheld []ending  // their leases are gone
	var behindDead []store.Attempt
	for i := range rows {
		w := &rows[i]
		if w.settle != nil && w.queued && *w.settle {
			behindDead = append(behindDead, waits[i])
			dead = append(dead, w.toReap...)
			unheld = append(unheld, ending{namespace: o.id.Namespace, key: waits[i].Key, lease: sharedLease})
		}
		if !w.queued || w.settle != nil || w.held() || w.heldUnder == (zeronull.UUID{}) {
			continue
		}
		behindDead = append(behindDead, waits[i])
		if w.lease != (zeronull.UUID{}) {
			dead = append(dead, uuid.UUID(w.heldUnder))
		} else {
			unheld = append(unheld, ending{namespace: o.id.Namespace, key: waits[i].Key, lease: uuid.UUID(w.heldUnder)})
		}
	}
	answers := make([]store.Answer, len(waits))
	for i := range rows {
		if answers[i], err = o.answer(ctx, &rows[i], waits[i]); err != nil {
			return nil, err
		}
	}
	if len(behindDead) == 0 {
		return answers, nil
	}
	if err := o.reapAndHandOff(ctx, dead, unheld); err != nil {
		return nil, err
	}
	if err := o.checkAgain(ctx, waits, behindDead, answers); err != nil {
		return nil, err
	}
	return answers, nil
}

func (o *operation) checkAgain(ctx context.Context, waits, which []store.Attempt, answers []store.Answer) error {
	rows, err := o.check(ctx, which)
	if err != nil {
		return err
	}
	byGrant := make(map[store.AttemptID]store.Answer, len(which))
	for n := range rows {
		if byGrant[which[n].ID], err = o.answer(ctx, &rows[n], which[n]); err != nil {
			return err
		}
	}
	for i, w := range waits {
		if a, ok := byGrant[w.ID]; ok {
			answers[i] = a
		}
	}
	return nil
}

// Cancel deletes waiters. If a waiter's row is gone, the lock may be granted, so Cancel reads the outcome.
func (s *Store) Cancel(ctx context.Context, waits []store.Attempt) (answers []store.Answer, err error) {
	if len(waits) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "cancel", len(waits))
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer func() { o.noteLate(err, len(waits), func(i int) store.AttemptID { return waits[i].ID }) }()
	gone := make(map[store.AttemptID]store.Answer, len(waits))
	if len(waits) > 1 {
		_, ids := columnsOf(waits)
		if _, err := o.cancel(ctx, gone, sqlCancelMany, ids); err != nil {
			return nil, err
		}
	} else if locked, err := o.cancel(ctx, gone, sqlCancelOne, [16]byte(waits[0].ID)); err != nil {
		return nil, err
	} else if locked {
		return []store.Answer{{Outcome: store.RowLocked}}, nil
	}
	rows, err := o.check(ctx, waits)
	if err != nil {
		return nil, err
	}
	answers = make([]store.Answer, len(waits))
	var locked []store.Attempt // their rows were locked
	var shared []string        // keys in whose queues these waiters may have blocked others
	for i := range rows {
		if _, cancelled := gone[waits[i].ID]; cancelled && (rows[i].settle != nil || rows[i].sharedWait != nil && *rows[i].sharedWait) {
			shared = append(shared, waits[i].Key)
		}
		if answers[i], err = o.answer(ctx, &rows[i], waits[i]); err != nil {
			return nil, err
		}
		elsewhere := rows[i].waitsAt != "" && string(rows[i].waitsAt) != s.id.Instance
		switch found := answers[i].Outcome; {
		case found != store.Queued && found != store.Skipped:
		case elsewhere:
			answers[i] = store.Answer{Outcome: store.Gone}
		default:
			locked, shared = append(locked, waits[i]), append(shared, waits[i].Key)
		}
	}
	if err := o.cancelLocked(ctx, waits, locked, answers, gone); err != nil {
		return nil, err
	}
	for i := range answers {
		if was, ok := gone[waits[i].ID]; ok && answers[i].Outcome == store.Gone {
			answers[i] = was
		}
	}
	return answers, o.letIn(ctx, shared)
}

// cancelLocked cancels the waiters whose rows were locked, one by one, and replaces their answers.
func (o *operation) cancelLocked(
	ctx context.Context, waits, locked []store.Attempt, answers []store.Answer, gone map[store.AttemptID]store.Answer,
) error {
	if len(locked) == 0 {
		return nil
	}
	for _, wait := range locked {
		if _, err := o.cancel(ctx, gone, sqlCancelOne, [16]byte(wait.ID)); err != nil {
			return err
		}
	}
	if err := o.checkAgain(ctx, waits, locked, answers); err != nil {
		return err
	}
	for i := range answers {
		if (answers[i].Outcome == store.Queued || answers[i].Outcome == store.Skipped) && slices.Contains(locked, waits[i]) {
			answers[i] = store.Answer{Outcome: store.RowLocked}
		}
	}
	return nil
}

// cancel deletes waiters by one of the cancel statements, and records their positions and skips. locked
// reports whether another session keeps a row locked.
func (o *operation) cancel(
	ctx context.Context, gone map[store.AttemptID]store.Answer, sql statement, which any,
) (locked bool, err error) {
	type cancelled struct {
		attempt  store.AttemptID
		skipped  bool
		result   *string
		position int
	}
	found, err := query(ctx, o, sql, []any{o.id.Namespace, which, o.notAfter, o.id.Instance},
		func(rows pgx.Rows, c *cancelled) error {
			return rows.Scan(&c.attempt, &c.skipped, &c.result, &c.position)
		})
	if isRowLocked(err) {
		o.warnLocked()
		return true, nil
	}
	for _, c := range found {
		gone[c.attempt] = store.Answer{Outcome: store.Gone, Position: c.position}
		if c.skipped {
			gone[c.attempt] = store.Answer{Outcome: store.Skipped, Result: jsonOf(c.result)}
		}
	}
	o.partly = o.partly || len(found) > 0
	return false, err
}

// Withdraw withdraws attempts: it frees what they hold or wait for.
func (s *Store) Withdraw(ctx context.Context, attempts []store.Attempt) ([]store.Outcome, error) {
	if len(attempts) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "withdraw", len(attempts))
	if err != nil {
		return nil, err
	}
	defer cancel()
	name := func(i int) keyName { return keyName{s.id.Namespace, attempts[i].Key} }
	outcomes := make([]store.Outcome, len(attempts))
	locked, err := o.aroundLocked(ctx, items(len(attempts)), name, func(ctx context.Context, which []int) error {
		at, err := o.withdraw(ctx, attempts, which)
		for _, i := range which {
			outcomes[i] = store.Gone
			if err == nil && s.late.canFollow(attempts[i].ID, at) {
				outcomes[i] = store.Unsettled
			}
		}
		return err
	})
	o.noteLate(err, len(attempts), func(i int) store.AttemptID { return attempts[i].ID })
	if err != nil {
		return nil, err
	}
	for _, i := range locked {
		outcomes[i] = store.RowLocked
	}
	for i := range outcomes {
		if o.notHandedOff[name(i)] {
			outcomes[i] = store.RowLocked
		}
	}
	return outcomes, nil
}

// withdraw returns the time at which its statement began, before it locked rows. An attempt's statement that is carried
// out after this one is judged by a later time.
func (o *operation) withdraw(ctx context.Context, attempts []store.Attempt, which []int) (at time.Time, err error) {
	id := o.id
	keys, ids := make([]string, len(which)), make([][16]byte, len(which))
	withdrawn := make([]ending, len(which))
	for n, i := range which {
		keys[n], ids[n] = attempts[i].Key, attempts[i].ID
		withdrawn[n] = ending{namespace: id.Namespace, key: attempts[i].Key, how: releaseOf(&store.Claim{})}
	}
	for {
		done, err := query(ctx, o, sqlWithdraw, []any{id.Namespace, o.notAfter, id.Instance, keys, ids},
			func(rows pgx.Rows, h *handOver) error {
				h.namespace = id.Namespace
				return rows.Scan(h.with(&h.key, &h.lapsed, &at)...)
			})
		if err != nil {
			return at, err
		}
		o.partly = true
		done = slices.DeleteFunc(done, func(h handOver) bool { return h.key == "" }) // it has only the time
		var todo work
		o.sortOut(done, withdrawn, &todo)
		todo.leases = unique(todo.leases)
		if err := o.finish(ctx, work{leases: todo.leases}, false); err != nil {
			return at, err
		}
		if o.anyBlocked(todo.leases) {
			o.noteNotHandedOff(todo.keys...)
			return at, nil
		}
		if len(todo.keys) == 0 {
			return at, nil
		}
	}
}
