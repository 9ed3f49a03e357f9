package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// watchMax limits the keys of one statement that watches: see handOffMax.
const watchMax = 500

// errWatch: under a dead lease, no events would arrive.
var errWatch = errors.New("the lease under which keys are to be watched is dead")

// watches are the keys that this instance watches, with their leases. They decide which events it accepts.
// The table watchers decides which events others send.
type watches struct {
	mu   sync.Mutex
	keys map[string]store.LeaseID
}

// add adds keys, or moves them to another lease. revert withdraws that.
func (w *watches) add(keys []string, lease store.LeaseID) (revert func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys == nil {
		w.keys = make(map[string]store.LeaseID)
	}
	before := make(map[string]store.LeaseID)
	for _, key := range keys {
		if was, ok := w.keys[key]; ok {
			before[key] = was
		}
		w.keys[key] = lease
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, key := range keys {
			was, ok := before[key]
			switch {
			case w.keys[key] != lease: // a later call has changed it
			case ok:
				w.keys[key] = was
			default:
				delete(w.keys, key)
			}
		}
	}
}

func (w *watches) remove(keys []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range keys {
		delete(w.keys, key)
	}
}

func (w *watches) drop(leases []uuid.UUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.keys) == 0 || len(leases) == 0 {
		return
	}
	dead := make(map[uuid.UUID]bool, len(leases))
	for _, lease := range leases {
		dead[lease] = true
	}
	for key, lease := range w.keys {
		if dead[lease] {
			delete(w.keys, key)
		}
	}
}

func (w *watches) has(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.keys[key]
	return ok
}

// Watch sends events of keys to this instance. It waits for the listener first. Events that this instance
// causes are reported at once.
func (s *Store) Watch(ctx context.Context, keys []string, lease store.LeaseID) error {
	if len(keys) == 0 {
		return nil
	}
	ctx, cancel, o, err := s.beginBatch(ctx, "watch", len(keys))
	if err != nil {
		return err
	}
	defer cancel()
	s.listener.ready(ctx, s.ear)
	revert := s.watches.add(keys, lease)
	id := s.id
	err = o.eachKey(ctx, keys, func(ctx context.Context, some []string) error {
		type row struct {
			key    string
			recall zeronull.Text
		}
		watched, err := query(ctx, o, sqlWatch, []any{id.Namespace, o.notAfter, some, [16]byte(lease), id.Instance},
			func(rows pgx.Rows, w *row) error { return rows.Scan(&w.key, &w.recall) })
		for _, w := range watched {
			o.recall(keyName{id.Namespace, w.key}, w.recall)
		}
		o.partly = o.partly || len(watched) > 0
		if err == nil && len(watched) < len(some) {
			err = o.fail(errWatch, false)
		}
		return err
	})
	if err != nil && !store.OutcomeUnknown(err) {
		revert()
	}
	return err
}

// Unwatch ends the watch of keys. Events in flight are ignored.
func (s *Store) Unwatch(ctx context.Context, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	s.watches.remove(keys)
	ctx, cancel, o, err := s.beginBatch(ctx, "unwatch", len(keys))
	if err != nil {
		return err
	}
	defer cancel()
	id := s.id
	return o.eachKey(ctx, keys, func(ctx context.Context, some []string) error {
		err := execute(ctx, o, sqlUnwatch, o.notAfter, slices.Repeat([]string{id.Namespace}, len(some)), some, id.Instance)
		o.partly = o.partly || err == nil
		return err
	})
}

// eachKey runs a statement for keys of this namespace. If rows are locked, it returns an error, so that the
// caller tries again.
func (o *operation) eachKey(ctx context.Context, keys []string, do func(context.Context, []string) error) error {
	var left int
	for some := range slices.Chunk(keys, watchMax) {
		name := func(i int) keyName { return keyName{o.id.Namespace, some[i]} }
		locked, err := o.aroundLocked(ctx, items(len(some)), name, func(ctx context.Context, which []int) error {
			names := make([]string, len(which))
			for n, i := range which {
				names[n] = some[i]
			}
			return do(ctx, names)
		})
		if err != nil {
			return err
		}
		left += len(locked)
	}
	if left > 0 {
		return o.fail(errRowLocked, false)
	}
	return nil
}

// event sends an event of a watched key of any namespace, because reaps and sweeps work in all. It is
// called after the commit, in order, and does not block.
func (o *operation) event(namespace string, e store.Event) {
	if namespace == o.id.Namespace && o.watches.has(e.Key) {
		o.report(store.News{Event: &e})
	}
	o.notifier.event(o.Store, namespace, e)
}

func (o *operation) unmark(ctx context.Context, keys []keyName) error {
	_, err := o.aroundLocked(ctx, items(len(keys)), func(i int) keyName { return keys[i] },
		func(ctx context.Context, which []int) error {
			namespaces, names := make([]string, len(which)), make([]string, len(which))
			for n, i := range which {
				namespaces[n], names[n] = keys[i].namespace, keys[i].key
			}
			const nobody = "" // no instance has this name
			return execute(ctx, o, sqlUnwatch, o.notAfter, namespaces, names, nobody)
		})
	return err
}
