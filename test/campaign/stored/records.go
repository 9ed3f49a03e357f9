package stored

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/key"
	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// records is a view of a server that keeps records of the compare-and-swap engine.
type records struct{ looker }

// looker is such a server.
type looker interface {
	// look returns what each part of a server has. A part has all leases, and some of the keys.
	look(ctx context.Context) ([]*seen, error)
	Close()
}

// seen is what a server of the compare-and-swap engine has at one moment.
type seen struct {
	names   []string // of the keys with records, in order
	records map[string]*key.Record
	// alive are the leases that live. opened are those that instances renew, with their instances.
	alive  map[uuid.UUID]bool
	opened map[uuid.UUID]string
	// own are the leases of the engine's own records, which elect the instance that sweeps.
	own map[uuid.UUID]bool
}

func newSeen() *seen {
	return &seen{records: map[string]*key.Record{}, alive: map[uuid.UUID]bool{}, opened: map[uuid.UUID]string{}, own: map[uuid.UUID]bool{}}
}

// record takes a record by its full name.
func (s *seen) record(name string, kept *cas.Record) (err error) {
	namespace, lock, _ := strings.Cut(name, "/")
	if namespace == "" {
		for _, id := range kept.Leases {
			s.own[id] = true
		}
		return nil
	}
	s.names = append(s.names, lock)
	s.records[lock], err = cas.Decode(kept)
	return err
}

func (r records) Lines(ctx context.Context) (lines []history.Op, err error) {
	parts, err := r.look(ctx)
	for _, found := range parts {
		some, err := found.lines()
		if err != nil {
			return nil, err
		}
		lines = append(lines, some...)
	}
	return lines, err
}

func (s *seen) lines() (lines []history.Op, err error) {
	for _, name := range s.names {
		rec := s.records[name]
		if len(rec.Waiters) == 0 {
			continue
		}
		line := history.Op{Kind: history.Line, Sidecar: -1, Key: name, Shared: len(rec.Shares) > 0, Holders: len(rec.Shares)}
		switch {
		case line.Shared:
			line.Limit = rec.Limit
		case rec.Holder.Lease > 0:
			line.Token, line.Attempt, line.Holders = rec.Holder.Token, rec.Holder.Attempt.String(), 1
		}
		for i := range rec.Waiters {
			w := &rec.Waiters[i]
			lease := rec.Leases[w.Lease-1].ID
			place := history.Place{Number: w.Order, Lease: lease.String(), Attempt: w.Attempt.String(), Dead: !s.alive[lease]}
			if place.ID, err = caller(w.Data); err != nil {
				return nil, err
			}
			line.Line = append(line.Line, place)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func (r records) Left(ctx context.Context, pods []string) (left []string, err error) {
	parts, err := r.look(ctx)
	own := map[uuid.UUID]bool{}
	for _, found := range parts {
		maps.Copy(own, found.own)
	}
	for _, found := range parts {
		for _, name := range found.names {
			left = append(left, found.leftOf(name)...)
		}
		for id := range found.alive {
			instance, renewed := found.opened[id]
			runs := slices.ContainsFunc(pods, func(pod string) bool { return strings.HasPrefix(instance, pod+"-") })
			if !own[id] && (!renewed || !runs) {
				left = append(left, fmt.Sprintf("lease %s of %q", id, instance))
			}
		}
	}
	slices.Sort(left)
	return slices.Compact(left), err
}

// leftOf is what is left of one key.
func (s *seen) leftOf(name string) (left []string) {
	rec := s.records[name]
	for _, h := range slices.Concat([]key.RecordHolder{rec.Holder}, rec.Shares) {
		for _, n := range []int{h.Lease, h.Hold} {
			if n > 0 && s.alive[rec.Leases[n-1].ID] {
				left = append(left, fmt.Sprintf("lock %s under token %d", name, h.Token))
			}
		}
	}
	for _, w := range slices.Concat(rec.Waiters, rec.Skipped) {
		left = append(left, fmt.Sprintf("waiter %d for %s", w.Order, name))
	}
	for _, g := range rec.Signals {
		left = append(left, fmt.Sprintf("signal %v for %s", g.Signal.Kind, name))
	}
	for range rec.Watchers {
		left = append(left, "watcher of "+name)
	}
	return left
}
