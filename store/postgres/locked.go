package postgres

import (
	"context"
	"errors"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/jackc/pgx/v5"
)

// errRowLocked: another session keeps rows locked for long.
var errRowLocked = errors.New("another database session keeps rows of locksidecar locked")

type keyName struct{ namespace, key string }

// aroundAttempts is how often a statement that waited too long is repeated if its rows are not locked any more.
const aroundAttempts = 3

const (
	// A statement for one row that was locked a moment ago waits for `patience` lock timeouts in place of one.
	// Transactions get a row in the order in which they came. A statement that gives up goes to the end of this
	// order, and the holder's release also waits in it. A row that stays locked for twice as long gets no more
	// patience. Only one statement is patient at a time, because it keeps a connection from all other keys.
	patience = 10
	// lockedFor is for how long a row still counts as locked a moment ago.
	lockedFor = 2 * time.Second
	// lockedMax is the number of such rows.
	lockedMax = 1000
)

// lockedRows remembers which rows an operation found locked, since when, and the last time.
type lockedRows struct {
	rows *lru.Cache[lockedBy, lockedRow]
	// turn is held by the one patient statement.
	turn chan struct{}
}

// lockedBy names a row and an operation that found it locked. Other operations still batch the key.
type lockedBy struct {
	operation string
	key       keyName
}

type lockedRow struct{ since, last time.Time }

func newLockedRows() (lockedRows, error) {
	rows, err := lru.New[lockedBy, lockedRow](lockedMax)
	return lockedRows{rows, make(chan struct{}, 1)}, err
}

func (l lockedRows) note(by lockedBy) time.Duration {
	now := time.Now()
	row, ok := l.rows.Get(by)
	if !ok || now.Sub(row.last) > lockedFor {
		row.since = now
	}
	row.last = now
	l.rows.Add(by, row)
	return now.Sub(row.since)
}

// since is for how long a row has been found locked, if it was a moment ago.
func (l lockedRows) since(by lockedBy) (d time.Duration, locked bool) {
	now := time.Now()
	row, ok := l.rows.Peek(by)
	return now.Sub(row.since), ok && now.Sub(row.last) <= lockedFor
}

// bePatient makes the next statement patient if it is for one busy row. The caller calls done with the
// statement's result.
func (o *operation) bePatient(items []int, name func(int) keyName) (done func(error)) {
	if len(items) != 1 || o.lockedRows.rows.Len() == 0 { // nearly always
		return func(error) {}
	}
	row, sent := lockedBy{o.name, name(items[0])}, o.sent
	if since, locked := o.lockedRows.since(row); locked && since < 2*patience*o.lockTimeout {
		select {
		case o.lockedRows.turn <- struct{}{}:
			o.patient = true
			return func(err error) {
				o.patient = false
				<-o.lockedRows.turn
				o.had(row, sent, err)
			}
		default:
		}
	}
	return func(err error) { o.had(row, sent, err) }
}

// had forgets a locked row if a statement has locked it in the meantime.
func (o *operation) had(row lockedBy, sent time.Time, err error) {
	if err == nil && o.sent != sent {
		o.lockedRows.rows.Remove(row)
	}
}

// aroundLocked runs a statement for some items. If the statement waits too long for a row, it is repeated
// for the items whose rows are free, and the other items are returned. So one locked row delays its batch
// by one lock_timeout. Callers ask again for the locked items alone.
func (o *operation) aroundLocked(
	ctx context.Context, items []int, name func(int) keyName, do func(context.Context, []int) error,
) (locked []int, err error) {
	for tries := 0; len(items) > 0; tries++ {
		o.expectedRows = len(items)
		done := o.bePatient(items, name)
		err := do(ctx, items)
		done(err)
		if !isRowLocked(err) {
			return locked, err
		}
		if len(items) == 1 || tries == aroundAttempts {
			for _, i := range items {
				o.noteLocked(name(i))
			}
			return append(locked, items...), nil
		}
		isLocked, err := o.locked(ctx, items, name)
		if err != nil {
			return nil, err
		}
		free := make([]int, 0, len(items))
		for _, i := range items {
			if isLocked[name(i)] {
				o.noteLocked(name(i))
				locked = append(locked, i)
			} else {
				free = append(free, i)
			}
		}
		items = free
	}
	return locked, nil
}

func (o *operation) locked(ctx context.Context, items []int, name func(int) keyName) (map[keyName]bool, error) {
	namespaces, keys := make([]string, len(items)), make([]string, len(items))
	for n, i := range items {
		namespaces[n], keys[n] = name(i).namespace, name(i).key
	}
	found, err := query(ctx, o, sqlLocked, []any{namespaces, keys},
		func(rows pgx.Rows, k *keyName) error { return rows.Scan(&k.namespace, &k.key) })
	if err != nil {
		return nil, err
	}
	locked := make(map[keyName]bool, len(found))
	for _, k := range found {
		locked[k] = true
	}
	return locked, nil
}

// noteLocked records that the row of a key is locked. It warns only after the time of a patient statement,
// because a row that many sidecars want is often locked.
func (o *operation) noteLocked(key keyName) {
	if o.lockedRows.note(lockedBy{o.name, key}) >= patience*o.lockTimeout {
		o.warnLocked("key", key.key, "namespace", key.namespace)
	}
}

// warnLocked logs for the operator, at most at intervals, that another session keeps rows locked.
func (o *operation) warnLocked(row ...any) {
	if o.lockedWarned.due(seldom) {
		o.log.Warn("another database session keeps a row locked, so calls for its key wait",
			append([]any{"operation", o.name, "hint", "look for old transactions in pg_stat_activity"}, row...)...)
	}
}

func items(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
