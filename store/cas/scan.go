package cas

import (
	"cmp"
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/store"
)

// pageSize is the number of records that a scan reads at once.
const pageSize = 500

// scan visits the rows under a prefix of the backend's keys, in their order, with the states of their leases. It
// reads one page after the other, so the result is not a snapshot. each returns false to end the scan.
func (s *Store) scan(ctx context.Context, op, prefix, after string, each func(*turn) bool) error {
	for {
		page, err := s.page(ctx, op, prefix, after)
		if err != nil {
			return err
		}
		for _, t := range page.turns {
			if !each(t) {
				return nil
			}
		}
		if after = page.last; after == "" {
			return nil
		}
	}
}

// page is a part of a scan. last is the last key, empty if no further page exists.
type page struct {
	turns []*turn
	last  string
}

func (s *Store) page(ctx context.Context, op, prefix, after string) (p page, err error) {
	if err := s.usable(ctx, op); err != nil {
		return p, err
	}
	records, err := s.requests.Scan(ctx, prefix, after, pageSize)
	if err != nil {
		return p, known(op, err)
	}
	if len(records) >= pageSize {
		p.last = records[len(records)-1].Key
	}
	records = slices.DeleteFunc(records, func(r Record) bool { return strings.HasPrefix(r.Key, ownKeys) })
	p.turns, err = s.rows(ctx, op, records)
	return p, err
}

// rows returns the rows of records, with the states of their leases, which are read after the records. So a record that
// names a dead lease is read again: see proved. It leaves out records that cannot be read, because they must not stop a
// sweep. Operations on such a key fail, and name it.
func (s *Store) rows(ctx context.Context, op string, records []Record) (turns []*turn, err error) {
	leases := map[store.LeaseID]struct{}{}
	for i := range records {
		for _, id := range records[i].Leases {
			leases[id] = struct{}{}
		}
	}
	all := slices.Collect(maps.Keys(leases))
	_, states, err := s.requests.Load(ctx, nil, all)
	if err != nil {
		return nil, known(op, err)
	}
	read := make(map[store.LeaseID]LeaseState, len(all))
	for i, id := range all {
		read[id] = states[i]
	}
	jobs := make([]*job, len(records))
	for i := range records {
		r := &records[i]
		r.States = make([]LeaseState, len(r.Leases))
		for k, id := range r.Leases {
			r.States[k] = read[id]
		}
		_, name, _ := strings.Cut(r.Key, "/")
		jobs[i] = &job{key: r.Key, name: name}
		jobs[i].read(r, nil)
	}
	unproved := slices.DeleteFunc(slices.Clone(jobs), (*job).proved)
	for reads := 0; reads < maxReads && len(unproved) > 0; reads++ {
		if err := s.load(ctx, unproved); err != nil {
			return nil, known(op, err)
		}
		unproved = slices.DeleteFunc(unproved, (*job).proved)
	}
	for _, j := range jobs {
		if t, err := s.begin(j); err != nil {
			s.log.Warn("left out", "op", op, "error", err)
		} else {
			turns = append(turns, t)
		}
	}
	return turns, nil
}

// known is the error of a read: nothing was done.
func known(op string, err error) error { return Failed(op, err, false) }

// List reads held locks in the order of their keys' bytes.
func (s *Store) List(ctx context.Context, q store.Query) (locks []store.Lock, err error) {
	limit := max(1, q.Limit)
	err = s.scan(ctx, "List", s.prefix+q.Prefix, s.full(q.After), func(t *turn) bool {
		if t.row.HeldAt(q.Instance, t.op.Now) {
			locks = append(locks, t.row.Lock(t.op.Now))
		}
		return len(locks) < limit
	})
	return locks, err
}

// Waiting reads waiters.
func (s *Store) Waiting(ctx context.Context, q store.WaitQuery) (found []store.Waiting, err error) {
	limit := max(1, q.Limit)
	each := func(t *turn) bool {
		if strings.HasPrefix(t.row.Key, q.Prefix) {
			found = append(found, t.row.Waiting(q.After, limit-len(found), t.op.Now)...)
		}
		return len(found) < limit
	}
	first := cmp.Or(q.Key, q.After.Key)
	if first != "" && (q.Key == "" || q.Key >= q.After.Key) {
		if err := s.usable(ctx, "Waiting"); err != nil {
			return nil, err
		}
		records, _, err := s.requests.Load(ctx, []string{s.full(first)}, nil)
		if err != nil {
			return nil, known("Waiting", err)
		}
		turns, err := s.rows(ctx, "Waiting", records)
		if err != nil || len(turns) > 0 && !each(turns[0]) {
			return found, err
		}
	}
	if q.Key == "" {
		err = s.scan(ctx, "Waiting", s.prefix+q.Prefix, s.full(q.After.Key), each)
	}
	return found, err
}

// Stats counts what the server holds for all namespaces.
func (s *Store) Stats(ctx context.Context) (store.Stats, error) {
	types, pods := store.Counts{}, store.Counts{}
	err := s.scan(ctx, "Stats", "", "", func(t *turn) bool {
		escaped, _, _ := strings.Cut(t.job.key, "/")
		namespace, err := url.PathUnescape(escaped)
		if err != nil {
			return true // not a key of this engine
		}
		of := t.row.Count(t.op.Now, func(pod string, stat store.Stat) { pods.Add(namespace, pod, stat) })
		if of.Held+of.Expired+of.Waiting > 0 {
			types.Add(namespace, store.TypeOf(t.row.Key), of)
		}
		return true
	})
	return store.Stats{Types: types.Lines(), Pods: pods.Lines()}, err
}
