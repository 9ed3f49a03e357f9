package cas

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/key"
)

const (
	// spareTokens are reserved with a grant, for those of its cohort that are queued later.
	spareTokens = 32
	// longerLife is doubled with each try: see Open.
	longerLife = 10 * time.Millisecond
)

var (
	errUnread = errors.New("the server did not tell the state of a lease")
	errTokens = errors.New("one change needs more tokens than a swap reserves")
	errRecord = errors.New("the key has too many holders and waiters, or too much data")
)

// turn is one run of the key machine on one record: it says what to swap, and what to tell after the swap.
type turn struct {
	s    *Store
	job  *job
	op   key.Op
	row  *key.Row
	rec  *key.Record // the record before
	next *key.Record // the record after, with offsets for the new tokens
	data []byte
	// unsent are letters for which the swap has no room.
	unsent []mail

	// leases are those of the record, and then those that the turn adds.
	leases []*key.Lease
	// full: the record has no room for more waiters. tooLarge: it would be too large nevertheless.
	full, tooLarge bool
	// assumed: the state of a lease is what this instance believes. Then only a swap proves the answer.
	assumed bool
	tokens  int64
	// mustLive are own leases whose life the machine relied on. opened are made for this turn, closed are not needed after the swap.
	mustLive []store.LeaseID
	opened   []NewLease
	closed   []store.LeaseID
}

// take runs a job on the record that it assumes. If the new record would be too large, and the job asks for the key, take runs it
// again and queues nobody. tooLarge: the record is too large even then. take returns errUnread if the state of a lease must be read first.
func (s *Store) take(j *job) (*turn, error) {
	t, err := s.tryWith(j, false)
	switch {
	case err != nil || !t.tooLarge:
		return t, err
	case !j.asks:
		return nil, fmt.Errorf("key %q: %w", j.name, errRecord)
	}
	return s.tryWith(j, true) // another round may find room again
}

// tryWith runs the items of a job on a row of its record. full: the record has no room for more waiters.
func (s *Store) tryWith(j *job, full bool) (*turn, error) {
	t, err := s.begin(j)
	if err != nil {
		return nil, err
	}
	t.full = full
	t.reap()
	for i := range j.items {
		if !j.items[i].do(t) {
			return nil, errUnread
		}
	}
	if t.tokens > TokensPerSwap {
		return nil, errTokens
	}
	t.next = t.row.Record()
	t.next.Writer = t.rec.Writer // a turn that changes nothing leaves the record as it is
	if !t.row.Empty() || j.bump || j.rec.Version != 0 {
		useOffsets(t.next)
		t.data = encode(t.next)
	}
	limit := s.limits.Record
	if j.asks {
		limit /= 2
	}
	t.tooLarge = len(t.data) > limit && len(t.data) > len(j.rec.Data)
	return t, nil
}

// begin makes the row of the record that a job assumes, with the states of its leases.
func (s *Store) begin(j *job) (*turn, error) {
	t := &turn{s: s, job: j, rec: noRecord}
	wall := time.Now()
	t.op = key.Op{Engine: t, By: s.me, Now: key.Moment{Wall: writable(wall.Truncate(time.Microsecond)), At: int64(wall.Sub(s.start))}, Quiet: max(0, j.quiet.Sub(wall))}
	switch {
	case j.was != nil:
		t.rec = j.was
	case j.rec.Version != 0:
		var err error
		if t.rec, err = Decode(j.rec); err != nil {
			return nil, err
		}
		j.was = t.rec
	}
	t.leases = make([]*key.Lease, len(t.rec.Leases), len(t.rec.Leases)+1)
	for i := range t.rec.Leases {
		l := &t.rec.Leases[i]
		var by *key.Instance
		if l.By > 0 {
			by = &t.rec.Instances[l.By-1]
		}
		t.leases[i] = key.NewLease(l.ID, by, j.name, l.TTL)
		if l.Dead {
			continue
		}
		state, known := s.state(j, l.ID)
		if !known {
			return nil, errUnread
		}
		t.leases[i].LiveFor(aliveFor(state), t.op.Now)
		t.assumed = t.assumed || !j.fresh
	}
	t.row = t.rec.Row(j.name, t.leases)
	return t, nil
}

// noRecord is the record of a key that has none. Nobody changes it.
var noRecord = &key.Record{}

// lease returns a lease that the record names or that the turn has added; nil: there is none with this id.
func (t *turn) lease(id store.LeaseID) *key.Lease {
	for _, l := range t.leases {
		if l.ID() == id {
			return l
		}
	}
	return nil
}

// aliveFor is how long a lease is alive from now on. A lease that was seen dead is expired, until the row is settled.
func aliveFor(state LeaseState) time.Duration {
	if !state.Alive {
		return 0
	}
	return max(state.Left, 1)
}

// reap ends what leases held that died since the record was written, as the visit of the key machine after a death. The record then has
// their mark, so each death is reaped once.
func (t *turn) reap() {
	if t.job.reads && !t.row.Wanted() {
		return // the next asker takes the key
	}
	holds := func(n int) bool {
		return t.rec.Holder.Hold == n || slices.ContainsFunc(t.rec.Shares, func(h key.RecordHolder) bool { return h.Hold == n })
	}
	for i := range t.rec.Leases {
		if l := t.leases[i]; !l.Dead() && !l.Alive(t.op.Now) && !holds(i+1) {
			t.op.Reap(l, false)
		}
	}
	if len(t.op.Died) > 0 {
		t.op.Visit(t.row, t.op.Died)
	}
}

// own returns a lease of this instance, and whether its state is known. A lease that is not alive is nil.
func (t *turn) own(id store.LeaseID) (l *key.Lease, known bool) {
	l = t.lease(id)
	if l == nil {
		state, known := t.s.state(t.job, id)
		if !known {
			return nil, false
		}
		_, read := t.job.states[id]
		t.assumed = t.assumed || !read
		if !state.Alive {
			return nil, true
		}
		l = key.NewLease(id, t.s.me, t.job.name, t.s.ttl(id)).LiveFor(aliveFor(state), t.op.Now)
		t.leases = append(t.leases, l)
	}
	if !l.Alive(t.op.Now) {
		return nil, true
	}
	t.mustLive = append(t.mustLive, id)
	return l, true
}

// changed reports whether the turn needs a swap.
func (t *turn) changed() bool {
	if t.job.bump || t.job.forget || len(t.op.News) > 0 {
		return true
	}
	if slices.Equal(t.data, t.job.rec.Data) {
		return false
	}
	// The last swap wrote its new tokens as offsets, and this turn writes them as tokens. That alone is no change.
	return t.job.rec.Version == 0 || t.tokens > 0 || t.rec.Holder.Lease != t.next.Holder.Lease || !slices.Equal(t.data, encode(t.rec))
}

// sign names this instance in the record that the turn writes: those whose swaps lose to this one ask it for way.
func (t *turn) sign() {
	writer := t.s.me.Name
	if slices.ContainsFunc(t.next.Instances, func(i key.Instance) bool { return i.Name == writer }) {
		writer = ""
	}
	if len(t.data) > 0 && t.next.Writer != writer {
		t.next.Writer = writer
		t.data = encode(t.next)
	}
}

// swap returns what to swap.
func (t *turn) swap() Swap {
	t.sign()
	w := Swap{Key: t.job.key, Version: t.job.rec.Version, Data: t.data, Delete: t.job.forget, Ends: t.job.hasEnding()}
	if t.tokens > 0 {
		w.Tokens = min(int(t.tokens)+spareTokens, TokensPerSwap)
	}
	size := 0
	for _, m := range append(slices.Clip(t.job.mail), t.letters()...) {
		letter := Letter{To: m.to, Key: t.job.key, Body: marshal(m.notes)}
		if size += len(letter.Body); len(w.Letters) == t.s.limits.Letters || size > t.s.limits.Mail || t.writes(w.Letters, m.to) {
			t.unsent = append(t.unsent, m)
		} else {
			w.Letters = append(w.Letters, letter)
		}
	}
	if w.Delete {
		return w
	}
	w.Leases = make([]store.LeaseID, len(t.next.Leases))
	for i := range t.next.Leases {
		w.Leases[i] = t.next.Leases[i].ID
	}
	most := t.s.limits.Living // without the condition of some shared holder it is right, too: the next operation on the key finds the dead holder
	needs := func(id store.LeaseID) {
		if len(w.Living) < most && !slices.Contains(w.Living, id) {
			w.Living = append(w.Living, id)
		}
	}
	for _, id := range t.mustLive {
		needs(id)
	}
	holds := func(h *key.RecordHolder) {
		for _, n := range []int{h.Lease, h.Hold} {
			if n > 0 && len(w.Living) < most && t.lease(w.Leases[n-1]).Alive(t.op.Now) {
				needs(w.Leases[n-1])
			}
		}
	}
	holds(&t.next.Holder)
	for i := len(t.next.Shares) - 1; i >= 0; i-- { // the new ones first
		holds(&t.next.Shares[i])
	}
	return w
}

// A turn is the [key.Engine] of its run of the key machine: the machine calls the methods of this file. They change nothing on the server. They note
// what the swap must do, or what must be done before or after it.

var _ key.Engine = (*turn)(nil)

// Token returns a provisional token.
func (t *turn) Token() int64 {
	t.tokens++
	return provisional + t.tokens - 1
}

// Reserve keeps tokens for a cohort. Those of a grant that the record has are kept if they are below what this swap and
// later ones give away.
func (t *turn) Reserve(upTo int64) bool {
	if upTo < provisional {
		return upTo < t.job.rec.Base+int64(t.job.rec.Tokens)
	}
	t.tokens = max(t.tokens, upTo-provisional+1)
	return true
}

// Open notes a lease to be opened before the swap. If it may have died before a swap that took long, the next one
// lives longer.
func (t *turn) Open(name string, ttl time.Duration, now key.Moment) *key.Lease {
	if t.job.deaths > 0 {
		ttl += longerLife << min(t.job.deaths, 8)
	}
	l := key.NewLease(uuid.New(), nil, name, ttl).LiveFor(ttl, now)
	t.leases = append(t.leases, l)
	t.opened = append(t.opened, NewLease{NewLease: store.NewLease{ID: l.ID(), TTL: ttl}, Ends: t.job.hasEnding()})
	return l
}

// Hold does the same.
func (t *turn) Hold(name string, ttl time.Duration, now key.Moment) *key.Lease {
	return t.Open(name, ttl, now)
}

// Extend replaces the lease, because a server may not let a lease end earlier.
func (t *turn) Extend(l *key.Lease, ttl time.Duration, now key.Moment) *key.Lease {
	if !l.Alive(now) {
		return nil
	}
	t.Close(l)
	return t.Open(l.Key(), ttl, now)
}

// Close notes a lease to be revoked after the swap.
func (t *turn) Close(l *key.Lease) { t.closed = append(t.closed, l.ID()) }

// NextSignal returns an id that no other signal has.
func (t *turn) NextSignal() store.SignalID { return t.s.nextSignal() }
