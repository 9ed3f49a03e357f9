package lease

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// The pause between two looks at a part of the store's locks grows while others look,
	// and is partRest times as long as the look took: nobody waits for it.
	partPauseMin = 100 * time.Millisecond
	partPauseMax = 10 * time.Second
	partRest     = 4
	// suspectsMax is how many candidates are judged together, at least.
	candidatesMax = 10_000
	// askedMax is how many keys are asked for at a time, with a pause as after a part: the
	// store may ask where it renews, and a slow disk must not keep renewals waiting.
	askedMax = 200
)

// orphans looks for what is held under leases and is not known here: after a failover that
// forgot releases, nobody else would ever give it up. That is not urgent, for it only keeps
// others waiting. The store finds locks by their keys and not by their leases, so all of
// them are looked at, a part at a time.
type orphans struct {
	m       *Manager
	mu      sync.Mutex
	sought  map[*lease]*reconciliation
	running bool
}

// seek lets orphans be looked for on a lease, unless that is done.
func (st *orphans) seek(l *lease, what *reconciliation) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if what.searched.Load() {
		return
	}
	st.sought[l] = what
	if !st.running {
		st.running = st.m.spawn(st.run)
	}
}

// run searches until nothing is sought any more.
func (st *orphans) run() {
	for { // each lease is named within an interval after the failover, and one search does for all
		if rest(st.m.ctx, clock.Jittered(st.m.cfg.RenewInterval)) != nil {
			return
		}
		s := st.next()
		if s == nil {
			return
		}
		if s.run(st.m.ctx) {
			st.done(s)
		}
	}
}

// next is the search for what is sought now in one history, or nil.
func (st *orphans) next() *search {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := &search{m: st.m, leases: make(map[store.LeaseID]*lease), candidates: make(map[store.HeldGrant]*atomic.Bool)}
	for l, what := range st.sought {
		if !l.alive(clock.Read(st.m.clk)) {
			delete(st.sought, l)
			continue
		}
		if len(s.leases) == 0 {
			s.history = what.history
		}
		if what.history == s.history {
			s.leases[l.id] = l
		}
	}
	if len(s.leases) == 0 {
		st.running = false
		return nil
	}
	return s
}

// done notes that all is known on the leases of a search. The renewals tell the store.
func (st *orphans) done(s *search) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, l := range s.leases {
		if what := st.sought[l]; what != nil && what.history == s.history {
			what.searched.Store(true)
			delete(st.sought, l)
		}
	}
}

// search is one look at all locks.
type search struct {
	m       *Manager
	history store.History
	leases  map[store.LeaseID]*lease
	// candidates were not known here when they were seen, with whether they are being given
	// up. An answer may be on its way that explains them.
	candidates map[store.HeldGrant]*atomic.Bool
}

// run reports whether all was seen in one history, and nothing is left that is not known.
func (s *search) run(ctx context.Context) bool {
	// What was forgotten was mostly released just before: that is found first.
	late, err := s.heldUnder(ctx, s.m.holdings.endedKeys())
	if err != nil {
		s.m.log.Debug("what is held under leases is not known, trying again later", "error", err)
		return false
	}
	s.addCandidates(late)
	if rest(ctx, 2*s.m.cfg.StoreTimeout) != nil || !s.resolve(ctx, 0) {
		return false
	}
	after, pause := "", partPauseMin
	for s.alive() {
		began := s.m.clk.Now()
		part, err := s.part(ctx, after)
		took := s.m.clk.Now().Sub(began)
		switch {
		case err != nil:
			s.m.log.Debug("what is held under leases is not known, trying again later", "error", err)
			pause = partPauseMax
		case part.History != s.history:
			return false
		case part.Last:
			s.addCandidates(part.Grants)
			return s.resolve(ctx, 2*s.m.cfg.StoreTimeout)
		case part.Next == after: // others look
			pause = min(2*pause, partPauseMax)
		default:
			s.addCandidates(part.Grants)
			if s.pressing() && !s.resolve(ctx, 2*s.m.cfg.StoreTimeout) {
				return false
			}
			after, pause = part.Next, max(pause/2, partPauseMin, partRest*took)
		}
		if rest(ctx, clock.Jittered(pause)) != nil {
			return false
		}
	}
	return false
}

func (s *search) part(ctx context.Context, after string) (store.Part, error) {
	ctx, cancel := context.WithTimeout(ctx, s.m.cfg.StoreTimeout)
	defer cancel()
	return s.m.reconciler().HeldUnderAfter(ctx, s.ids(), after)
}

// heldUnder asks what is held under the leases under these keys.
func (s *search) heldUnder(ctx context.Context, keys []string) (grants []store.HeldGrant, err error) {
	for some := range slices.Chunk(keys, askedMax) {
		began := s.m.clk.Now()
		limited, cancel := context.WithTimeout(ctx, s.m.cfg.StoreTimeout)
		count, err := s.m.reconciler().HeldUnder(limited, s.ids(), some)
		cancel()
		if err == nil && count.History != s.history {
			err = errOtherHistory
		}
		if err != nil {
			return nil, err
		}
		grants = append(grants, count.Grants...)
		if err := rest(ctx, partRest*s.m.clk.Now().Sub(began)); err != nil {
			return nil, err
		}
	}
	return grants, nil
}

func (s *search) ids() []store.LeaseID { return slices.Collect(maps.Keys(s.leases)) }

// alive reports whether one of the leases is trusted.
func (s *search) alive() bool {
	for _, l := range s.leases {
		if l.alive(clock.Read(s.m.clk)) {
			return true
		}
	}
	return false
}

// addCandidates notes what is not known here.
func (s *search) addCandidates(grants []store.HeldGrant) {
	for _, r := range grants {
		if s.leases[r.Lease] != nil && r.ID != uuid.Nil && !s.m.knows(r) {
			s.candidates[r] = new(atomic.Bool)
		}
	}
}

// pressing reports whether candidates are to be judged before more of them are looked for:
// there are many, or one is queued, and may get a key that nobody would use.
func (s *search) pressing() bool {
	for r := range s.candidates {
		if r.Waiting {
			return true
		}
	}
	return len(s.candidates) >= candidatesMax
}

// resolve gives up those candidates that are not known after a pause, when no answer can be on
// its way any more, and reports whether it has come to an end: whether none is there.
func (s *search) resolve(ctx context.Context, pause time.Duration) bool {
	for ; len(s.candidates) > 0; pause = s.m.cfg.RenewInterval {
		if rest(ctx, pause) != nil || !s.alive() {
			return false
		}
		keys := make([]string, 0, len(s.candidates))
		for r := range s.candidates {
			keys = append(keys, r.Key)
		}
		slices.Sort(keys)
		grants, err := s.heldUnder(ctx, slices.Compact(keys))
		if errors.Is(err, errOtherHistory) {
			return false
		}
		if err != nil {
			continue
		}
		left := make(map[store.HeldGrant]*atomic.Bool)
		for _, r := range grants {
			leaving := s.candidates[r]
			if leaving == nil { // a queue position that nobody knows may have got the key meanwhile
				leaving = s.candidates[store.HeldGrant{Attempt: r.Attempt, Lease: r.Lease, Waiting: true}]
			}
			if leaving != nil && !s.m.knows(r) {
				left[r] = leaving
				s.m.withdrawOrphan(s.leases[r.Lease], r, leaving)
			}
		}
		s.candidates = left
	}
	return true
}

// knows reports whether somebody here has a grant, or waits for it. Who waits may have got
// it, and not have heard of it for long; and what is being released may keep its key for its
// MinHold. The queue is asked first: an attempt that wins is held before it leaves the queue.
func (m *Manager) knows(r store.HeldGrant) bool {
	if m.acquirer.queue.awaits(r.ID) {
		return true
	}
	if r.Waiting {
		return false
	}
	if h := m.holdings.get(r.Key); h != nil && h.token == r.Token {
		return true
	}
	e, _ := m.holdings.ended(r.Key, r.Token)
	return e.release != nil
}

// withdrawOrphan withdraws what nobody here knows, once at a time: an withdraw goes on until it is
// confirmed. A grant whose id follows from a request_id may be given to a repeat of the
// request in this moment: it takes its turn, or comes later.
func (m *Manager) withdrawOrphan(l *lease, r store.HeldGrant, leaving *atomic.Bool) {
	if !leaving.CompareAndSwap(false, true) {
		return
	}
	settled := func() { leaving.Store(false) }
	if r.ID.Version() != randomID {
		calls := m.acquirer.requests.Use(r.ID, nil)
		settled = func() { m.acquirer.requests.Done(calls, nil); leaving.Store(false) }
		select {
		case <-calls.Turns():
			settled = func() { calls.Leave(); m.acquirer.requests.Done(calls, nil); leaving.Store(false) }
		default:
			settled()
			return
		}
		if m.knows(r) {
			settled()
			return
		}
	}
	m.log.Warn("a lock or a place in line is back that was given up before the database server was promoted: it is given up again",
		"key", r.Key, "token", r.Token)
	m.acquirer.withdrawOnce(context.Background(), r.Attempt, func() bool { return l.alive(clock.Read(m.clk)) }, settled)
}

// randomID is the version of ids that follow from nothing.
const randomID = 4

// rest waits for so long, or until ctx ends.
func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
