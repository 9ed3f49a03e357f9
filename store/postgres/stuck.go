package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/store"
)

// errStuck: somebody keeps rows locked for long.
var errStuck = errors.New("another database session keeps rows of locksidecar locked")

// keyName is a key in its namespace.
type keyName struct{ namespace, key string }

// aroundAttempts is how often a statement that waited in vain is tried again when
// no row of its keys turns out to be locked.
const aroundAttempts = 3

// aroundStuck carries out a statement for some items. Should it have to wait for
// long, somebody keeps a row locked: then it is carried out for those items whose
// rows are free in this moment, and the others are returned. One stuck row costs
// the others of its batch one lock_timeout.
func (o *operation) aroundStuck(
	ctx context.Context, items []int, name func(int) keyName, do func(context.Context, []int) error,
) (stuck []int, err error) {
	return o.aroundStuckLeases(ctx, items, name, func(int) *store.LeaseID { return nil }, do)
}

// aroundStuckLeases is aroundStuck for a statement that also writes to a lease of some
// items (own; nil: to none).
func (o *operation) aroundStuckLeases(
	ctx context.Context, items []int, name func(int) keyName, own func(int) *store.LeaseID, do func(context.Context, []int) error,
) (stuck []int, err error) {
	for tries := 0; len(items) > 0; tries++ {
		o.asked = len(items)
		err := do(ctx, items)
		if !isStuck(err) {
			return stuck, err
		}
		o.noteStuck()
		if len(items) == 1 || tries == aroundAttempts {
			return append(stuck, items...), nil
		}
		locked, err := o.locked(ctx, items, name, own)
		if err != nil {
			return nil, err
		}
		free := make([]int, 0, len(items))
		for _, i := range items {
			if locked[name(i)] {
				stuck = append(stuck, i)
			} else {
				free = append(free, i)
			}
		}
		items = free
	}
	return stuck, nil
}

// locked reads which of the items' rows, or own leases, somebody has locked in this moment.
func (o *operation) locked(
	ctx context.Context, items []int, name func(int) keyName, own func(int) *store.LeaseID,
) (map[keyName]bool, error) {
	namespaces, keys := make([]string, len(items)), make([]string, len(items))
	leases := make([]*[16]byte, len(items))
	for n, i := range items {
		namespaces[n], keys[n], leases[n] = name(i).namespace, name(i).key, (*[16]byte)(own(i))
	}
	found, err := query(ctx, o, sqlLocked, []any{namespaces, keys, leases},
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

// noteStuck says now and then that somebody keeps rows locked: an operator with an
// open transaction does not know whom he holds up.
func (o *operation) noteStuck() {
	if o.stuckNoted.due(seldom) {
		o.log.Warn("a row stays locked by another database session: calls for its key wait",
			"operation", o.name, "hint", "look for old transactions in pg_stat_activity")
	}
}

// items numbers n items.
func items(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
