package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Load implements [cas.Backend].
func (b *Server) Load(ctx context.Context, keys []string, leases []store.LeaseID) ([]cas.Record, []cas.LeaseState, error) {
	records, states := make([]cas.Record, len(keys)), make([]cas.LeaseState, len(leases))
	groups := b.group(len(keys), func(i int) string { return keys[i] })
	if len(keys) == 0 && len(leases) > 0 {
		for part := range groups {
			groups[part] = []int{-1} // no record says where: ask all
		}
	}
	told := b.newTold()
	began := time.Now()
	var mu sync.Mutex
	first := true
	err := each(groups, "load", false, func(part int, of []int) error {
		if of[0] < 0 {
			of = nil
		}
		for at := 0; at == 0 || at < len(of); at += perCall {
			some := of[at:min(len(of), at+perCall)]
			ask := leases
			if at > 0 {
				ask = nil
			}
			found, err := b.loadSome(ctx, part, told, began, some, keys, ask, records)
			if err != nil {
				return err
			}
			if at > 0 {
				continue
			}
			mu.Lock()
			leftAt(began, found)
			for i, state := range found {
				states[i] = combine(states[i], state, first, len(keys) > 0)
			}
			first = false
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	history := b.together(told)
	leftNow(began, states)
	for i := range records {
		records[i].History = history
		leftNow(began, records[i].States)
	}
	return records, states, nil
}

// leftAt makes what is left from now on what was left at a moment, and leftNow does the opposite. In between, other partitions answer.
func leftAt(began time.Time, states []cas.LeaseState) {
	for i := range states {
		states[i].Left += time.Since(began)
	}
}

func leftNow(began time.Time, states []cas.LeaseState) {
	for i := range states {
		states[i].Left = max(0, states[i].Left-time.Since(began))
	}
}

// combine combines the states of a lease in two partitions. Beside records, a lease that one of their partitions does
// not have is dead: swaps that need it fail there. Without records, it is alive as long as one has it, because it may hold
// keys there.
func combine(a, b cas.LeaseState, first, beside bool) cas.LeaseState {
	switch {
	case first:
		return b
	case beside:
		return cas.LeaseState{Alive: a.Alive && b.Alive, Left: min(a.Left, b.Left)}
	default:
		return cas.LeaseState{Alive: a.Alive || b.Alive, Left: max(a.Left, b.Left)}
	}
}

func (b *Server) loadSome(ctx context.Context, part int, told *told, began time.Time, some []int, keys []string, leases []store.LeaseID, records []cas.Record) ([]cas.LeaseState, error) {
	args := make([]any, 0, 1+len(some)+len(leases))
	args = append(args, len(some))
	for _, i := range some {
		args = append(args, keys[i])
	}
	for i := range leases {
		args = append(args, leases[i][:])
	}
	sent := time.Now()
	answer, _, err := b.call(ctx, "load", "load", reads, part, told, args...)
	if err != nil {
		return nil, err
	}
	if len(answer) != len(some)+len(leases) {
		return nil, classify("load", errAnswer, false)
	}
	for n, i := range some {
		if records[i], err = decode(keys[i], answer[n], sent); err != nil {
			return nil, classify("load", err, false)
		}
		leftAt(began, records[i].States)
		b.history.saw(&records[i])
	}
	states := make([]cas.LeaseState, len(leases))
	for i := range leases {
		states[i] = stateOf(answer[len(some)+i], sent)
	}
	return states, nil
}

// serverTick is how exact the server counts. Both ends of a remaining time are rounded down, so it may be too long by that.
const serverTick = time.Millisecond

// stateOf reads the remaining time of a lease, as it was asked. It is never overstated.
func stateOf(ms any, sent time.Time) cas.LeaseState {
	left, ok := ms.(int64)
	if !ok || left < 0 {
		return cas.LeaseState{}
	}
	return cas.LeaseState{Alive: true, Left: max(0, time.Duration(left)*time.Millisecond-serverTick-time.Since(sent))}
}

// decode reads a record, and the states of its leases.
func decode(key string, answer any, sent time.Time) (cas.Record, error) {
	r := cas.Record{Key: key}
	parts, ok := answer.([]any)
	if !ok || len(parts) == 0 {
		return r, errAnswer
	}
	if parts[0] == nil {
		return r, nil
	}
	value, ok := parts[0].(string)
	if !ok {
		return r, errAnswer
	}
	if err := read(&r, value); err != nil {
		return r, err
	}
	if len(parts) == 1 {
		return r, nil // without states
	}
	if len(parts) != 1+len(r.Leases) {
		return r, errAnswer
	}
	for _, ms := range parts[1:] {
		r.States = append(r.States, stateOf(ms, sent))
	}
	return r, nil
}

// Record reads the value of a record's key. It is also for tools that look at a server.
func Record(key, value string) (cas.Record, error) {
	r := cas.Record{Key: key}
	err := read(&r, value)
	return r, err
}

// read reads a record's value: see functions.lua.
func read(r *cas.Record, value string) error {
	head, rest, found := strings.Cut(value, "|")
	fields := strings.Fields(head)
	if !found || len(fields) != 4 || fields[0] != "1" {
		return errFormat
	}
	version, err := strconv.ParseInt(fields[1], 10, 64)
	tokens, err2 := strconv.Atoi(fields[2])
	count, err3 := strconv.Atoi(fields[3])
	if err != nil || err2 != nil || err3 != nil || count < 0 || count > len(rest)/16 {
		return errFormat
	}
	r.Version, r.Base, r.Tokens = version, version, tokens
	for range count {
		r.Leases = append(r.Leases, uuid.UUID([]byte(rest[:16])))
		rest = rest[16:]
	}
	r.Data = []byte(rest)
	return nil
}

// Scan implements [cas.Backend].
func (b *Server) Scan(ctx context.Context, prefix, after string, limit int) ([]cas.Record, error) {
	from, to := "["+prefix, "+"
	if after >= prefix {
		from = "(" + after
	}
	if end := cas.Behind(prefix); end != "" {
		to = "(" + end
	}
	pages := make([][]cas.Record, len(b.parts))
	groups := b.all()
	err := each(groups, "scan", false, func(part int, _ []int) error {
		answer, _, err := b.call(ctx, "scan", "scan", reads, part, nil, from, to, limit)
		if err != nil {
			return err
		}
		for i := 0; i+1 < len(answer); i += 2 {
			key, _ := answer[i].(string)
			r, err := decode(key, []any{answer[i+1]}, time.Time{})
			if err != nil {
				return classify("scan", fmt.Errorf("key %q: %w", key, err), false)
			}
			pages[part] = append(pages[part], r)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return merge(pages, limit), nil
}
