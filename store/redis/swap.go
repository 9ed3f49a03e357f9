package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

const (
	// perCall limits the swaps or keys of one call, because the server does nothing else meanwhile.
	perCall = 200
	// maxBytes limits their size. A larger swap has a call of its own.
	maxBytes = 1 << 20
	// usualSwap is more bytes than most swaps have.
	usualSwap = 384
)

// each calls do for each partition of a group, at the same time, and returns one of the errors. The error is Unknown if that of a partition
// is, or if another partition succeeded.
func each(groups [][]int, op string, changes bool, do func(part int, of []int) error) error {
	var mu sync.Mutex
	var failed error
	unknown, did := false, false
	one := func(part int) {
		err := do(part, groups[part])
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			did = true
		} else {
			failed, unknown = err, unknown || store.OutcomeUnknown(err)
		}
	}
	var working sync.WaitGroup
	only := -1
	for part := range groups {
		if len(groups[part]) == 0 {
			continue
		}
		if only >= 0 {
			working.Go(func() { one(part) })
		} else {
			only = part
		}
	}
	if only >= 0 {
		one(only) // in the caller's goroutine
	}
	working.Wait()
	return cas.Failed(op, failed, changes && (unknown || did))
}

// Load implements [cas.Backend].
func (b *Backend) Load(ctx context.Context, keys []string, leases []store.LeaseID) ([]cas.Record, []cas.LeaseState, error) {
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

func (b *Backend) loadSome(ctx context.Context, part int, told *told, began time.Time, some []int, keys []string, leases []store.LeaseID, records []cas.Record) ([]cas.LeaseState, error) {
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

// Swap implements [cas.Backend].
func (b *Backend) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	done := make([]cas.Swapped, len(swaps))
	groups := b.group(len(swaps), func(i int) string { return swaps[i].Key })
	err := each(groups, "swap", true, func(part int, of []int) error {
		did := false
		for len(of) > 0 {
			n := 1
			for size := len(swaps[of[0]].Data); n < len(of) && n < perCall && size < maxBytes; n++ {
				size += len(swaps[of[n]].Data)
			}
			if err := b.swapSome(ctx, part, of[:n], swaps, done); err != nil {
				return cas.Failed("swap", err, did || store.OutcomeUnknown(err))
			}
			did, of = true, of[n:]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return done, nil
}

func (b *Backend) swapSome(ctx context.Context, part int, some []int, swaps []cas.Swap, done []cas.Swapped) error {
	err := b.sendSome(ctx, part, some, swaps, done)
	if !isFull(err) || !slices.ContainsFunc(swaps, fitsFullMemory) {
		return err
	}
	// Nothing new is granted, and the others of the call are carried out.
	var rest []int
	for _, i := range some {
		if fitsFullMemory(swaps[i]) {
			rest = append(rest, i)
		} else {
			done[i] = cas.Swapped{Later: true, Record: cas.Record{Key: swaps[i].Key}}
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return b.sendSome(ctx, part, rest, swaps, done)
}

// fitsFullMemory reports whether a server with full memory carries a swap out.
func fitsFullMemory(w cas.Swap) bool { return w.Ends || w.Tokens == 0 }

// sendSome sends swaps in one call.
func (b *Backend) sendSome(ctx context.Context, part int, some []int, swaps []cas.Swap, done []cas.Swapped) error {
	name, list, fields := "swap", newList(usualSwap*len(some)), 0
	for _, i := range some {
		if !fitsFullMemory(swaps[i]) {
			name = "grant"
		}
		fields += b.add(list, &swaps[i])
	}
	sent := time.Now()
	answer, quiet, err := b.call(ctx, "swap", name, sends, part, nil, list.of(fields))
	if err != nil {
		return err
	}
	if len(answer) != len(some) {
		return classify("swap", errAnswer, true)
	}
	for n, i := range some {
		if done[i], err = swapped(&swaps[i], answer[n], sent, quiet); err != nil {
			return classify("swap", err, true)
		}
		b.history.saw(&done[i].Record)
	}
	return nil
}

// add adds a swap to a list as functions.lua reads it, and returns how many elements it added.
func (b *Backend) add(list *list, w *cas.Swap) int {
	what := "w"
	switch {
	case w.Delete:
		what = "d"
	case w.Tokens > 0:
		what = "g"
	}
	list.text(w.Key)
	list.number(w.Version)
	list.text(what)
	if w.Delete {
		list.text("")
	} else {
		head := make([]byte, 0, 32)
		head = strconv.AppendInt(append(head, ' '), int64(w.Tokens), 10)
		head = append(strconv.AppendInt(append(head, ' '), int64(len(w.Leases)), 10), '|')
		list.size(len(head) + 16*len(w.Leases) + len(w.Data))
		list.to = append(list.to, head...)
		list.ids(w.Leases)
		list.to = append(list.to, w.Data...)
	}
	list.size(16 * len(w.Living))
	list.ids(w.Living)
	list.number(int64(len(w.Letters)))
	for l := range w.Letters {
		list.text(b.channel(w.Letters[l].To))
		list.text(w.Letters[l].Key)
		list.text(string(w.Letters[l].Body))
	}
	const ofSwap, ofLetter = 6, 3
	return ofSwap + ofLetter*len(w.Letters)
}

// swapped reads the answer to one swap.
func swapped(w *cas.Swap, answer any, sent time.Time, quiet time.Duration) (cas.Swapped, error) {
	if text, ok := answer.(string); ok {
		version, err := strconv.ParseInt(text, 10, 64)
		r := cas.Record{Key: w.Key, Version: version, Base: version, Tokens: w.Tokens}
		if w.Delete {
			r.Version = 0
		}
		return cas.Swapped{Done: true, Record: r}, err
	}
	parts, ok := answer.([]any)
	if !ok || len(parts) < 2 {
		return cas.Swapped{}, errAnswer
	}
	s := cas.Swapped{}
	if code, _ := parts[0].(int64); code == 2 {
		s.Quiet = max(quiet, time.Millisecond)
	}
	var err error
	s.Record, err = decode(w.Key, parts[1:], sent)
	return s, err
}

// NextToken implements [cas.Backend].
func (b *Backend) NextToken(ctx context.Context) (next int64, err error) {
	for part := range b.parts {
		answer, quiet, err := b.call(ctx, "next", "next", repeats, part, nil)
		if err != nil {
			return 0, err
		}
		if quiet > 0 {
			return 0, &store.Error{Op: "next", Err: &store.QuietError{Left: quiet}}
		}
		text, _ := answer[0].(string)
		of, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return 0, classify("next", errAnswer, false)
		}
		next = max(next, of)
	}
	return next, nil
}

// RaiseTokens implements [cas.Backend]. A repeat does no harm.
func (b *Backend) RaiseTokens(ctx context.Context, first int64) error {
	for part := range b.parts {
		if _, _, err := b.call(ctx, "raise", "raise", repeats, part, nil, first); err != nil {
			return err
		}
	}
	return nil
}

// Scan implements [cas.Backend].
func (b *Backend) Scan(ctx context.Context, prefix, after string, limit int) ([]cas.Record, error) {
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

// all names each partition once.
func (b *Backend) all() [][]int {
	groups := make([][]int, len(b.parts))
	for part := range groups {
		groups[part] = []int{part}
	}
	return groups
}

// letter is what a swap publishes: its version, and the key with its length before it, and then the body.
func letter(to, payload string) (cas.Letter, bool) {
	version, rest, _ := strings.Cut(payload, " ")
	length, rest, found := strings.Cut(rest, " ")
	base, err := strconv.ParseInt(version, 10, 64)
	n, err2 := strconv.Atoi(length)
	if !found || err != nil || err2 != nil || n < 0 || n > len(rest) {
		return cas.Letter{}, false
	}
	return cas.Letter{To: to, Key: rest[:n], Base: base, Body: []byte(rest[n:])}, true
}
