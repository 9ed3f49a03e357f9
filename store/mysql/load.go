package mysql

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// loadAtOnce is how many records or leases one packet asks for.
const loadAtOnce = 512

// Load implements [cas.Backend]. A second request follows only if a record names leases that are not among the given ones.
func (b *Server) Load(ctx context.Context, keys []string, leases []store.LeaseID) ([]cas.Record, []cas.LeaseState, error) {
	known := map[store.LeaseID]cas.LeaseState{}
	var records []cas.Record
	var err error
	if len(keys) > 0 {
		if records, err = b.recordsAnd(ctx, keys, leases, known); err != nil {
			return nil, nil, err
		}
	}
	present := make([]*cas.Record, 0, len(records)+1)
	for i := range records {
		present = append(present, &records[i])
	}
	given := cas.Record{Leases: leases}
	if err := b.addStates(ctx, append(present, &given), known); err != nil {
		return nil, nil, err
	}
	return records, given.States, nil
}

// records reads records.
func (b *Server) records(ctx context.Context, keys []string) ([]cas.Record, error) {
	return b.recordsAnd(ctx, keys, nil, nil)
}

// recordsAnd reads records, and with the first ones also the states of living leases.
func (b *Server) recordsAnd(ctx context.Context, keys []string, leases []store.LeaseID, known map[store.LeaseID]cas.LeaseState) ([]cas.Record, error) {
	var records []cas.Record
	for part := range slices.Chunk(keys, loadAtOnce) {
		with := leases[:min(len(leases), loadAtOnce)]
		leases = nil
		began := time.Now()
		found, now, err := b.readIn(ctx, "load", func(p *packet) {
			p.ask("load", part)
			if len(with) > 0 {
				p.ask("lease_states", with)
			}
		})
		if err != nil {
			return nil, err
		}
		byKey := map[string][][]byte{}
		for _, row := range found[0] {
			byKey[string(row[0])] = row
		}
		for _, key := range part {
			r := cas.Record{Key: key}
			if row := byKey[key]; row != nil {
				if r, err = record(row[0], row[1], row[2], row[3], row[4]); err != nil {
					return nil, cas.Failed("load", err, false)
				}
			}
			r.History = now.history
			records = append(records, r)
		}
		if len(with) > 0 {
			if err := b.states(ctx, with, found[1], began, known); err != nil {
				return nil, err
			}
		}
	}
	return records, nil
}

// addStates sets the states of the leases that records name: see [cas.AddStates].
func (b *Server) addStates(ctx context.Context, records []*cas.Record, known map[store.LeaseID]cas.LeaseState) error {
	return cas.AddStates(records, known, func(leases []store.LeaseID) error {
		for part := range slices.Chunk(leases, loadAtOnce) {
			began := time.Now()
			found, err := b.read(ctx, "states", func(p *packet) { p.ask("lease_states", part) })
			if err == nil {
				err = b.states(ctx, part, found[0], began, known)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// states notes the states of leases from the rows of those that exist, which were asked for at some time. It makes those dead
// that have expired.
func (b *Server) states(ctx context.Context, asked []store.LeaseID, rows [][][]byte, began time.Time, known map[store.LeaseID]cas.LeaseState) error {
	for _, id := range asked {
		known[id] = cas.LeaseState{}
	}
	expired, err := living(rows, began, known)
	if err != nil || len(expired) == 0 {
		return err
	}
	began = time.Now()
	found, err := b.write(ctx, "end_expired", func(p *packet) {
		p.add("end_expired", expired)
		p.ask("lease_states", expired)
	})
	if err != nil {
		return cas.Failed("states", err, false)
	}
	// Those that still exist were renewed before the deletion, so they count as living, also if they have expired since.
	expired, err = living(found[0], began, known)
	for _, id := range expired {
		known[id] = cas.LeaseState{Alive: true}
	}
	return err
}

// living notes the leases that live, and returns those that have expired. The time since the request is not left to a lease any
// more, because its holder may be told what is left.
func living(rows [][][]byte, began time.Time, known map[store.LeaseID]cas.LeaseState) (expired []store.LeaseID, err error) {
	ids, err := leaseIDs(rows)
	if err != nil {
		return nil, err
	}
	elapsed := time.Since(began)
	for i, id := range ids {
		left, err := strconv.ParseInt(string(rows[i][1]), 10, 64)
		if err != nil {
			return nil, errFormat
		}
		if left <= 0 {
			expired = append(expired, id)
			continue
		}
		known[id] = cas.LeaseState{Alive: true, Left: max(0, time.Duration(left)*time.Microsecond-elapsed)}
	}
	return expired, nil
}

// Scan implements [cas.Backend].
func (b *Server) Scan(ctx context.Context, prefix, after string, limit int) ([]cas.Record, error) {
	if limit <= 0 {
		return nil, nil
	}
	end := cmp.Or(cas.Behind(prefix), "\xff") // names are UTF-8 or escaped, so none begins with 0xff
	found, err := b.read(ctx, "scan", func(p *packet) { p.ask("scan", after, prefix, end, limit) })
	if err != nil {
		return nil, err
	}
	var records []cas.Record
	for _, row := range found[0] {
		r, err := record(row[0], row[1], row[2], row[3], row[4])
		if err != nil {
			return nil, cas.Failed("scan", err, false)
		}
		records = append(records, r)
	}
	return records, nil
}
