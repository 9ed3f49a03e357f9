package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// Enqueue takes keys that are free or whose holders are dead, and stands in line
// for the others. It goes on, until ctx ends it, while holders die in its way.
func (s *Store) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	if len(asks) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.begin(ctx, "enqueue")
	if err != nil {
		return nil, err
	}
	defer cancel()
	t := newTally(o, asks)
	for len(t.open) > 0 {
		if err := t.ask(ctx, true); err != nil {
			return nil, err
		}
	}
	return t.answers, nil
}

// waitRow is what sql/check.sql says of an attempt.
type waitRow struct {
	lockColumns
	ord     int
	queued  bool
	place   int
	mine    bool // the key's grant is the attempt's
	ridesOn zeronull.UUID
}

// answer says what became of the attempt.
func (w *waitRow) answer(key string) store.Answer {
	switch {
	case w.queued:
		return store.Answer{Outcome: store.Queued, Position: w.place, Lock: w.lock(key)}
	case w.mine && w.held():
		return w.granted()
	}
	return store.Answer{Outcome: store.Gone}
}

// check reads what became of attempts, in their order.
func (o *operation) check(ctx context.Context, waits []store.Attempt) ([]waitRow, error) {
	keys, grants := columnsOf(waits)
	found, err := query(ctx, o, sqlCheck, []any{o.config.Identity.Namespace, keys, grants},
		func(rows pgx.Rows, w *waitRow) error {
			return rows.Scan(w.with(&w.ord, &w.queued, &w.place, &w.mine, &w.ridesOn)...)
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

func columnsOf(attempts []store.Attempt) (keys []string, grants [][16]byte) {
	keys, grants = make([]string, len(attempts)), make([][16]byte, len(attempts))
	for i, a := range attempts {
		keys[i], grants[i] = a.Key, a.Grant
	}
	return keys, grants
}

// CheckWaits tells what became of waiters. It is also what makes up for a granter
// that died half-way: a dead holder with waiters is handed off here.
func (s *Store) CheckWaits(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	if len(waits) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.begin(ctx, "check waits")
	if err != nil {
		return nil, err
	}
	defer cancel()
	rows, err := o.check(ctx, waits)
	if err != nil {
		return nil, err
	}
	var dead []uuid.UUID
	var stuck []store.Attempt
	for i := range rows {
		if rows[i].queued && !rows[i].held() && rows[i].ridesOn != (zeronull.UUID{}) {
			dead = append(dead, uuid.UUID(rows[i].ridesOn))
			stuck = append(stuck, waits[i])
		}
	}
	answers := make([]store.Answer, len(waits))
	for i := range rows {
		answers[i] = rows[i].answer(waits[i].Key)
	}
	if len(stuck) == 0 {
		return answers, nil
	}
	if err := o.bury(ctx, unique(dead), false); err != nil {
		return nil, err
	}
	if err := o.checkAgain(ctx, waits, stuck, answers); err != nil {
		return nil, err
	}
	return answers, nil
}

// checkAgain replaces the answers to some of the waits.
func (o *operation) checkAgain(ctx context.Context, waits, which []store.Attempt, answers []store.Answer) error {
	rows, err := o.check(ctx, which)
	if err != nil {
		return err
	}
	byGrant := make(map[store.GrantID]store.Answer, len(which))
	for n := range rows {
		byGrant[which[n].Grant] = rows[n].answer(which[n].Key)
	}
	for i, w := range waits {
		if a, ok := byGrant[w.Grant]; ok {
			answers[i] = a
		}
	}
	return nil
}

// CancelWaits takes waiters out of their queues. One whose row is gone may have
// been granted: that is read, not guessed.
func (s *Store) CancelWaits(ctx context.Context, waits []store.Attempt) ([]store.Answer, error) {
	if len(waits) == 0 {
		return nil, nil
	}
	ctx, cancel, o, err := s.begin(ctx, "cancel waits")
	if err != nil {
		return nil, err
	}
	defer cancel()
	if len(waits) > 1 {
		_, grants := columnsOf(waits)
		if err := execute(ctx, o, sqlCancelMany, o.config.Identity.Namespace, grants); err != nil {
			return nil, err
		}
		o.partly = true
	} else if err := o.cancel(ctx, waits[0]); err != nil {
		return nil, err
	}
	rows, err := o.check(ctx, waits)
	if err != nil {
		return nil, err
	}
	answers := make([]store.Answer, len(waits))
	var left []store.Attempt
	for i := range rows {
		answers[i] = rows[i].answer(waits[i].Key)
		if rows[i].queued { // somebody had it locked
			left = append(left, waits[i])
			if err := o.cancel(ctx, waits[i]); err != nil {
				return nil, err
			}
		}
	}
	if len(left) == 0 {
		return answers, nil
	}
	if err := o.checkAgain(ctx, waits, left, answers); err != nil {
		return nil, err
	}
	return answers, nil
}

// cancel takes one waiter out of its queue, waiting for who has it locked.
func (o *operation) cancel(ctx context.Context, wait store.Attempt) error {
	err := execute(ctx, o, sqlCancelOne, o.config.Identity.Namespace, [16]byte(wait.Grant))
	o.partly = o.partly || err == nil
	return err
}

// Undo frees what attempts hold or wait for.
func (s *Store) Undo(ctx context.Context, attempts []store.Attempt) error {
	if len(attempts) == 0 {
		return nil
	}
	ctx, cancel, o, err := s.begin(ctx, "undo")
	if err != nil {
		return err
	}
	defer cancel()
	keys, grants := columnsOf(attempts)
	for {
		done, err := query(ctx, o, sqlUndo, []any{s.config.Identity.Namespace, keys, grants},
			func(rows pgx.Rows, h *handOver) error { return h.scan(rows) })
		if err != nil {
			return err
		}
		o.partly = true
		again, expired := o.sortOut(done, nil)
		if err := o.bury(ctx, expired, false); err != nil || len(again) == 0 {
			return err
		}
	}
}
