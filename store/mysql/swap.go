package mysql

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Sizes of the tables' columns.
const (
	maxName    = 1536
	maxMailbox = 512
	maxBlob    = 1 << 24
)

const (
	// maxSwaps and maxBytes limit a packet. A hexadecimal literal has two bytes for each. A larger swap has a packet of its own.
	maxSwaps = 64
	maxBytes = 512 << 10
	// patience is how long one of several swaps waits for a row that another session has locked. A swap alone waits for a shorter time,
	// because store/cas tries again, and asks other sidecars to give way.
	patience, alonePatience = 50 * time.Millisecond, 10 * time.Millisecond
	// shortWait and longWait limit the pauses meanwhile.
	shortWait, longWait = time.Millisecond, 16 * time.Millisecond
)

// Swap implements [cas.Backend].
func (b *Server) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	return b.SwapInParts(ctx, swaps, func() (leave func(), free bool) { return nil, false })
}

// SwapInParts is Swap. A packet is sent beside others on another connection, if one is free, otherwise after them.
func (b *Server) SwapInParts(ctx context.Context, swaps []cas.Swap, another func() (leave func(), free bool)) ([]cas.Swapped, error) {
	for i := range swaps {
		if tooLarge(&swaps[i]) {
			return nil, cas.Failed("swap", errTooLarge, false)
		}
	}
	done := make([]cas.Swapped, len(swaps))
	c := &call{b: b, swaps: swaps, done: done}
	parts := c.parts()
	errs := make([]error, len(parts))
	var sending sync.WaitGroup
	for i, part := range parts {
		send := func() { errs[i] = c.carryOut(ctx, part) }
		if i == len(parts)-1 {
			send()
		} else if leave, free := another(); free {
			sending.Go(func() { defer leave(); send() })
		} else {
			send()
		}
	}
	sending.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return nil, cas.Failed("swap", errs[i], c.carried.Load() || slices.ContainsFunc(errs, store.OutcomeUnknown))
	}
	if err := b.addStates(ctx, c.present(), map[store.LeaseID]cas.LeaseState{}); err != nil {
		return nil, cas.Failed("swap", err, c.carried.Load())
	}
	return done, nil
}

// NextToken implements [cas.Backend].
func (b *Server) NextToken(ctx context.Context) (int64, error) {
	found, now, err := b.readIn(ctx, "next", func(p *packet) { p.ask("next_token") })
	switch {
	case err != nil:
		return 0, cas.Failed("next", err, false)
	case now.quiet > 0:
		return 0, cas.Failed("next", &store.QuietError{Left: now.quiet}, false)
	case len(found) != 1 || len(found[0]) != 1:
		return 0, cas.Failed("next", errFormat, false)
	}
	next, err := strconv.ParseInt(string(found[0][0][0]), 10, 64)
	if err != nil {
		return 0, cas.Failed("next", errFormat, false)
	}
	return next, nil
}

// RaiseTokens implements [cas.Backend].
func (b *Server) RaiseTokens(ctx context.Context, first int64) error {
	_, err := b.write(ctx, "raise", func(p *packet) { p.add("raise_floor_to", first) })
	return err
}

func tooLarge(s *cas.Swap) bool {
	large := len(s.Key) > maxName || len(s.Data) >= maxBlob || len(s.Leases)*16 >= maxBlob
	for i := range s.Letters {
		l := &s.Letters[i]
		large = large || len(l.To) > maxMailbox || len(l.Key) > maxName || len(l.Body) >= maxBlob
	}
	return large
}

// call is one call of Swap.
type call struct {
	b       *Server
	swaps   []cas.Swap
	done    []cas.Swapped
	carried atomic.Bool // a swap was carried out
}

// parts divides the swaps into packets, each in the order of the keys.
func (c *call) parts() (parts [][]int) {
	order := make([]int, len(c.swaps))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(c.swaps[a].Key, c.swaps[b].Key) })
	var part []int
	size := 0
	for _, i := range order {
		s := &c.swaps[i]
		bytes := len(s.Key) + len(s.Data) + 16*(len(s.Leases)+len(s.Living))
		for _, l := range s.Letters {
			bytes += len(l.Body) + len(l.Key) + len(l.To)
		}
		if len(part) > 0 && (len(part) == maxSwaps || size+bytes > maxBytes) {
			parts, part, size = append(parts, part), nil, 0
		}
		part, size = append(part, i), size+bytes
	}
	if len(part) > 0 {
		parts = append(parts, part)
	}
	return parts
}

// present returns the records of swaps that were not carried out.
func (c *call) present() (records []*cas.Record) {
	for i := range c.done {
		if !c.done[i].Done {
			records = append(records, &c.done[i].Record)
		}
	}
	return records
}

// carryOut carries a packet's swaps out. It tries those whose rows are locked again for a while.
func (c *call) carryOut(ctx context.Context, part []int) error {
	until := time.Now().Add(patience)
	if len(c.swaps) == 1 {
		until = time.Now().Add(alonePatience)
	}
	seemedFree := false
	for wait := shortWait; ; wait = min(2*wait, longWait) {
		on := c.conditions(part)
		failed, err := c.send(ctx, part, on)
		if err == nil {
			return c.apart(ctx, failed, on)
		}
		if !errors.Is(err, errRowLocked) {
			return err
		}
		free, locked := []int(nil), part
		if len(part) > 1 {
			if free, locked, err = c.unlocked(ctx, part); err != nil {
				return err
			}
		}
		if len(free) > 0 && len(locked) > 0 {
			if err := c.carryOut(ctx, free); err != nil {
				return err
			}
		}
		again := time.Now().Before(until)
		switch {
		case len(locked) > 0:
			part = locked
		case !seemedFree:
			seemedFree = true
			continue // at once
		case !again: // no read shows the locked row: it is new, and not committed
			return c.halves(ctx, part)
		}
		if !again || !cas.Pause(ctx, wait/2+rand.N(wait)) { //nolint:gosec // spreads load
			return c.giveUp(ctx, part)
		}
	}
}

// halves carries out the halves of a packet, one after the other, to find the swap whose row is locked.
func (c *call) halves(ctx context.Context, part []int) error {
	if err := c.carryOut(ctx, part[:len(part)/2]); err != nil {
		return err
	}
	return c.carryOut(ctx, part[len(part)/2:])
}

// names returns the keys of some swaps that fulfil a condition.
func (c *call) names(part []int, which func(*cas.Swap) bool) (names []string) {
	for _, i := range part {
		if which(&c.swaps[i]) {
			names = append(names, c.swaps[i].Key)
		}
	}
	return names
}

func all(*cas.Swap) bool { return true }

// unlocked divides swaps into those whose rows nobody has locked now, and others.
func (c *call) unlocked(ctx context.Context, part []int) (free, locked []int, err error) {
	names := c.names(part, all)
	found, err := c.b.write(ctx, "unlocked", func(p *packet) {
		p.ask("unlocked_records", names)
		p.ask("present_records", names)
	})
	if err != nil {
		return nil, nil, err
	}
	has := func(rows [][][]byte, name string) bool {
		return slices.ContainsFunc(rows, func(row [][]byte) bool { return string(row[0]) == name })
	}
	for _, i := range part {
		if name := c.swaps[i].Key; has(found[1], name) && !has(found[0], name) {
			locked = append(locked, i)
		} else {
			free = append(free, i)
		}
	}
	return free, locked, nil
}

// giveUp answers swaps whose rows stay locked with the present records.
func (c *call) giveUp(ctx context.Context, part []int) error {
	records, err := c.b.records(ctx, c.names(part, all))
	if err != nil {
		return err
	}
	for n, i := range part {
		c.done[i] = cas.Swapped{Later: true, Record: records[n]}
	}
	return nil
}

// apart carries out swaps that failed in a packet whose conditions did not hold. Those with just these have failed. The others
// are divided into two packets, so that one dead lease among many costs few. Swaps with the same conditions stay together.
func (c *call) apart(ctx context.Context, failed []int, on conditions) error {
	var sets []conditions
	var others, of []int // of: the set of each
	for _, i := range failed {
		own := c.conditions([]int{i})
		if own.equal(on) {
			continue
		}
		set := slices.IndexFunc(sets, own.equal)
		if set < 0 {
			set = len(sets)
			sets = append(sets, own)
		}
		others, of = append(others, i), append(of, set)
	}
	var parts [2][]int
	for n, i := range others {
		half := 2 * of[n] / len(sets)
		parts[half] = append(parts[half], i)
	}
	for _, part := range parts {
		if len(part) == 0 {
			continue
		}
		if err := c.carryOut(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// conditions are those of swaps, but for versions.
type conditions struct {
	living []store.LeaseID
	grants bool // which a quiet time forbids
}

func (c conditions) equal(d conditions) bool {
	return c.grants == d.grants && len(c.living) == len(d.living) &&
		!slices.ContainsFunc(c.living, func(id store.LeaseID) bool { return !slices.Contains(d.living, id) })
}

func (c *call) conditions(part []int) (all conditions) {
	for _, i := range part {
		all.grants = all.grants || c.swaps[i].Tokens > 0
		for _, id := range c.swaps[i].Living {
			if !slices.Contains(all.living, id) {
				all.living = append(all.living, id)
			}
		}
	}
	return all
}

// send sends one packet with swaps, which are in the order of their keys, on the conditions of all. If these do not hold, none is
// carried out. It returns what read does.
func (c *call) send(ctx context.Context, part []int, on conditions) (failed []int, err error) {
	id := rand.Int64N(1<<62) + 1 //nolint:gosec // tells requests apart
	names := hexed(c.names(part, all))
	created := c.names(part, isNew)
	found, now, err := c.b.writeIn(ctx, "swap", func(p *packet) {
		p.locks = true
		p.ask("lock_records", names)
		if len(on.living) > 0 {
			p.ask("lock_leases", on.living)
		}
		if len(created) < len(part) {
			c.replace(p, id, part, on)
		}
		if len(created) > 0 {
			c.create(p, id, part, on)
			p.add("above_floor", created, id)
		}
		for _, i := range part {
			for _, l := range c.swaps[i].Letters {
				p.add("letter", l.To, l.Key, l.Body, c.swaps[i].Key, id)
				p.letterTo(l.To)
			}
		}
		p.ask("swapped", id, id, id, names)
		if removed := c.names(part, func(s *cas.Swap) bool { return s.Delete }); len(removed) > 0 {
			p.add("raise_floor", removed, id)
			p.add("remove", removed, id)
		}
	})
	if err != nil {
		return nil, err
	}
	return c.read(part, found[len(found)-1], now)
}

// values are those of some swaps of a packet, each as a list.
type values struct {
	names        []string
	list         literals // of the names
	tokens       []int
	leases, data [][]byte
}

func (c *call) values(part []int, which func(*cas.Swap) bool) (v values) {
	for _, i := range part {
		if s := &c.swaps[i]; which(s) {
			v.names, v.tokens = append(v.names, s.Key), append(v.tokens, reserved(s))
			v.leases, v.data = append(v.leases, column(s.Leases)), append(v.data, s.Data)
		}
	}
	v.list = hexed(v.names)
	return v
}

// replace adds the statement that writes records which exist.
func (c *call) replace(p *packet, id int64, part []int, on conditions) {
	v := c.values(part, func(s *cas.Swap) bool { return s.Version != 0 })
	var expected []versioned
	for _, i := range part {
		if s := &c.swaps[i]; s.Version != 0 {
			expected = append(expected, versioned{s.Key, s.Version})
		}
	}
	p.add("replace", v.list, v.tokens, id, v.list, v.leases, v.list, v.data, v.list, expected)
	on.add(p)
}

// create adds the statement that makes records.
func (c *call) create(p *packet, id int64, part []int, on conditions) {
	v := c.values(part, isNew)
	p.add("create", v.list, v.tokens, id, v.list, v.leases, v.list, v.data)
	for i, name := range v.names {
		if i > 0 {
			p.more("or")
		}
		p.more("new_record", name)
	}
	p.more("created")
	on.add(p)
	p.more("or_keep")
}

func isNew(s *cas.Swap) bool { return s.Version == 0 }

// add continues a statement.
func (c conditions) add(p *packet) {
	if len(c.living) > 0 {
		p.more("if_living", c.living, len(c.living))
	}
	if c.grants {
		p.more("if_not_quiet")
	}
}

// column is how a record contains the ids of its leases.
func column(leases []store.LeaseID) []byte {
	ids := make([]byte, 0, 16*len(leases))
	for _, id := range leases {
		ids = append(ids, id[:]...)
	}
	return ids
}

// reserved is how many tokens a swap needs, and at least one, because the version must change.
func reserved(s *cas.Swap) int { return max(1, s.Tokens) }

// read writes the answers to swaps. It returns those that failed although their records are as expected, and
// not because of the quiet time.
func (c *call) read(part []int, rows [][][]byte, now state) (failed []int, err error) {
	byName := make(map[string][][]byte, len(rows))
	for _, row := range rows {
		byName[string(row[0])] = row
	}
	for _, i := range part {
		s, row := &c.swaps[i], byName[c.swaps[i].Key]
		r, done := cas.Record{Key: s.Key}, false
		if row != nil {
			if r, err = record(row[0], row[1], row[2], row[4], row[5]); err != nil {
				return nil, cas.Failed("swap", err, true)
			}
			done = string(row[3]) == "1"
		}
		c.done[i] = cas.Swapped{Record: r, Done: done}
		switch {
		case done:
			c.carried.Store(true)
			if r.Leases, r.Data = s.Leases, nil; s.Delete {
				r.Version = 0
			}
			c.done[i].Record = r
		case r.Version == s.Version && s.Tokens > 0 && now.quiet > 0:
			c.done[i].Quiet = now.quiet
		case r.Version == s.Version:
			failed = append(failed, i)
		}
	}
	return failed, nil
}

// Confirm implements [cas.Confirmer]. InnoDB shows a commit before the disk has it, so a crash may forget what was read.
func (b *Server) Confirm(ctx context.Context) error {
	_, _, err := b.request(ctx, b.main, "confirm", true, true, func(p *packet) {
		p.add("confirm")
		p.add("confirmed")
	})
	return err
}

// record reads a record's columns.
func record(name, version, tokens, leases, data []byte) (r cas.Record, err error) {
	r = cas.Record{Key: string(name), Data: data}
	if r.Version, err = strconv.ParseInt(string(version), 10, 64); err != nil || len(leases)%16 != 0 {
		return r, errFormat
	}
	if r.Tokens, err = strconv.Atoi(string(tokens)); err != nil {
		return r, errFormat
	}
	r.Base = r.Version
	for id := range slices.Chunk(leases, 16) {
		r.Leases = append(r.Leases, store.LeaseID(id))
	}
	return r, nil
}
