package holdings

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// End ends the session; only the first call has an effect. Its waits end. The app is told of each lock that it loses, unless it
// ended the session itself. Then its locks are released in the background. The channel is closed when the store has confirmed
// that, or when their leases are dead.
func (s *Session) End(reason types.EndReason) <-chan struct{} {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return s.released
	}
	s.ended = true
	kept := s.keptLocked()
	var left atomic.Int64
	left.Store(int64(s.held.count() + len(kept)))
	settled := func() {
		if left.Add(-1) == 0 {
			close(s.released)
		}
	}
	releases := make([]*Release, 0, s.held.count()+len(kept))
	for _, h := range kept {
		releases = append(releases, h.newEnd(settled))
	}
	for h := range s.held.all {
		r := h.newEnd(settled)
		r.ofSession = true
		lost := sessionLosses[reason]
		s.takeLocked(h, End{Lost: lost, Release: r})
		if lost != "" {
			s.notifyLossLocked(h, lost)
		}
		releases = append(releases, r)
	}
	close(s.ending)
	if s.onEnd != nil {
		s.onEnd(reason)
	}
	s.mu.Unlock()

	s.set.obs.SessionEnded(sessionEnds[reason])
	s.set.forget(s)
	if len(releases) == 0 {
		close(s.released)
	}
	for _, r := range releases {
		r.send()
	}
	return s.released
}

// sessionLosses are the reasons that late claims get. If the app ended the session, its locks count as released.
var sessionLosses = map[types.EndReason]types.LostReason{
	types.EndDropped:  types.LostDisconnected,
	types.EndDeleted:  "",
	types.EndShutdown: types.LostShutdown,
}

var sessionEnds = map[types.EndReason]string{types.EndDropped: "dropped", types.EndDeleted: "deleted", types.EndShutdown: "shutdown"}

// take removes h from the session. It returns false if h was removed before.
func (s *Session) take(h *Lock, e End) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(h, e)
}

func (s *Session) takeLocked(h *Lock, e End) bool {
	if !s.held.remove(h) {
		return false
	}
	if h.unpublished {
		s.unpublished--
	}
	s.observeEnd(h, e)
	s.set.remove(h)
	s.set.ends.add(grantRef{h.Key, h.Token}, e)
	s.freesLocked(e.Release)
	s.set.locks.Add(-1)
	if h.outlived != nil {
		h.outlived.Stop()
	}
	return true
}

// remove removes h. It returns false if h is not in the map.
func (m *lockMap) remove(h *Lock) bool {
	if !m.has(h) {
		return false
	}
	if !h.IsShare() {
		delete(m.exclusive, h.Key)
		return true
	}
	m.shared--
	if delete(m.shares[h.Key], h.Token); len(m.shares[h.Key]) == 0 {
		delete(m.shares, h.Key)
	}
	return true
}

// remove removes h unless a later grant of the key has replaced it.
func (hs *Set) remove(h *Lock) {
	sh := hs.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.locks.remove(h)
}

// observeEnd reports that h has left its session, unless h was never published. The caller holds s.mu.
func (s *Session) observeEnd(h *Lock, e End) {
	if h.unpublished {
		return
	}
	reason := observe.Released
	switch {
	case e.Lost != "":
		reason = string(e.Lost)
	case e.Release != nil && e.Release.ofSession:
		reason = observe.SessionEnded
	}
	var heldFor time.Duration
	if e.Release != nil {
		heldFor = e.Release.HeldFor
	} else {
		heldFor = h.heldFor(s.set.clk.Now())
	}
	s.set.obs.HoldEnded(h.span, h.Key, reason, heldFor)
}

// Outlive ends a lock whose MaxHold is over. The lock is lost and also released, because its lease lives on.
func (h *Lock) Outlive() {
	if h.GiveUp(types.LostMaxHold) {
		h.s.set.obs.MaxHoldOver(h.observed())
	}
}

// GiveUp removes a lock from its session, notifies the session of the loss, and releases the lock. It
// returns false if the session no longer holds the lock. A break also ends its MinHold.
func (h *Lock) GiveUp(reason types.LostReason) bool {
	r := h.newEnd(nil)
	r.atOnce = reason == types.LostForced
	h.s.mu.Lock()
	ok := h.s.forfeitLocked(h, reason)
	if ok {
		h.s.freesLocked(r)
	}
	h.s.mu.Unlock()
	if ok {
		r.send()
	}
	return ok
}

// HandBackMember releases the lock of a slot. settled is called after the last try. If the session does not
// hold the lock, it does nothing and returns false.
func (s *Session) HandBackMember(p *Slot, settled func()) bool {
	h := s.LockOf(p)
	r := h.newEnd(settled)
	if !s.take(h, End{Release: r}) {
		return false
	}
	r.send()
	return true
}

// HandBack ends, in the background, an entry whose answer could not be delivered. The last entry releases the lock.
func (s *Session) HandBack(g types.Grant) {
	h := cmp.Or(s.Find(g.Key, g.Token), s.findLost(&types.ReleaseRequest{Key: g.Key, Token: g.Token}))
	if h == nil {
		return
	}
	r := h.newEnd(nil)
	r.undelivered, r.means = true, func(e entry) bool { return e.serial == g.Entry }
	entries, err := s.Exit(h, r)
	if errors.Is(err, ErrNotHeld) {
		entries, err = s.exitLost(h, r)
	}
	if err == nil && entries == 0 {
		r.send()
	}
}

// Signal applies a signal to a holder. It returns false if the grant is not known here.
func (hs *Set) Signal(sig store.Signal) (known bool) {
	h := hs.meantBy(sig)
	if h == nil {
		if sig.Kind == store.Break {
			hs.breakLost(grantRef{sig.Key, sig.Token})
		}
		_, ended := hs.Ended(sig.Key, sig.Token)
		return ended
	}
	switch sig.Kind {
	case store.Stop:
		if h.s.stop(h, sig) {
			hs.obs.AskedToStop(h.observed())
		}
	case store.Break:
		if h.GiveUp(types.LostForced) {
			hs.obs.Broken(h.observed())
		}
	}
	return true
}

// meantBy returns the lock that a signal means, or nil. A break names a grant, as does a request to stop a share. A
// request to stop an exclusive lock is for its present holder, so it may name the first member of the cohort.
func (hs *Set) meantBy(sig store.Signal) *Lock {
	if h := hs.Find(sig.Key, sig.Token); h != nil {
		return h
	}
	if h := hs.Get(sig.Key); h != nil && sig.Kind == store.Stop && h.cohort.serves() && store.OfGrant(sig.Token, h.Token) {
		return h
	}
	return nil
}

// stop records a request to stop and notifies the app. It returns false if h is not held, or had the same
// request before.
func (s *Session) stop(h *Lock, sig store.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held.has(h) || h.stopping != nil && sameReason(h.stopping.Reason, sig.Reason) {
		return false
	}
	at := sig.At
	if h.stopping != nil {
		at = h.stopping.At
	}
	s.askLocked(h, &store.Stopping{Reason: sig.Reason, At: at})
	return true
}

// Shown applies a request to stop that the store shows. The request may have arrived between two holders of
// a cohort, when no session could be notified.
func (h *Lock) Shown(asked *store.Stopping) {
	h.s.mu.Lock()
	first := asked != nil && h.stopping == nil && h.s.held.has(h)
	if first {
		h.s.askLocked(h, asked)
	}
	h.s.mu.Unlock()
	if first {
		h.s.set.obs.AskedToStop(h.observed())
	}
}

func (s *Session) askLocked(h *Lock, asked *store.Stopping) {
	h.change().stopping = asked
	if !h.unpublished {
		s.notifyStopLocked(h)
	}
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

type grantRef struct {
	key   string
	token int64
}

// End says how a grant ended.
type End struct {
	// Lost is the reason of a loss, empty if the lock was released.
	Lost types.LostReason
	// Release is the release, under way or done, if the lock was released.
	Release *Release
}

// UnderWay reports whether a repeated release waits for Release. If a session's end released the lock, for instance because its
// connection was dropped, the caller is told of that end, unless the release failed.
func (e End) UnderWay() bool { return e.Release != nil && (e.Lost == "" || e.Release.failed()) }

// Remembered is the minimum number of remembered ended grants of this sidecar. The maximum is one and a
// half times as many.
const Remembered = 10_000

// recentEnds remembers how the last grants ended, in three maps, the latest first. When the first is full,
// the oldest is emptied.
type recentEnds struct {
	mu   sync.Mutex
	ages [3]map[grantRef]End
}

func newRecentEnds() *recentEnds {
	e := &recentEnds{}
	for i := range e.ages {
		e.ages[i] = make(map[grantRef]End)
	}
	return e
}

func (e *recentEnds) add(ref grantRef, end End) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ages[0]) >= Remembered/2 {
		oldest := e.ages[2]
		clear(oldest)
		e.ages = [3]map[grantRef]End{oldest, e.ages[0], e.ages[1]}
	}
	e.ages[0][ref] = end
}

// settled forgets a Release that is done. Otherwise its lock would stay in memory as long as the end is remembered. lost is
// why the lock ended if the store did not confirm the release.
func (e *recentEnds) settled(ref grantRef, lost types.LostReason) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.ages {
		if end, ok := known[ref]; ok {
			end.Release, end.Lost = nil, cmp.Or(end.Lost, lost)
			known[ref] = end
			return
		}
	}
}

func (e *recentEnds) get(ref grantRef) (End, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, known := range e.ages {
		if end, ok := known[ref]; ok {
			return end, true
		}
	}
	return End{}, false
}
