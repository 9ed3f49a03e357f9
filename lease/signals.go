package lease

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// signals hears what others ask the sessions here for: to stop what they do under
// a lock, or to give it up. News and the renewals say that there is something; then
// the store is asked, and told what was heard. One look is under way at a time, with
// a pause between them; what comes meanwhile makes one more follow.
type signals struct {
	m *Manager

	mu      sync.Mutex
	looking bool
	wanted  bool

	// unplaced are signals for grants that are not known here, by when they were first
	// seen: a grant may still be on its way to here. Only the look under way uses them;
	// some: whoever gets a lock should make a look follow.
	unplaced map[store.SignalID]time.Time
	some     atomic.Bool
}

func newSignals(m *Manager) *signals {
	return &signals{m: m, unplaced: make(map[store.SignalID]time.Time)}
}

// look makes the store be asked for signals soon. It does not block.
func (sg *signals) look() {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.wanted = true
	if !sg.looking {
		sg.looking = sg.m.spawn(func() { sg.run(sg.m.ctx) })
	}
}

// placed hears that a session has got a lock, for which there may be a signal.
func (sg *signals) placed() {
	if sg.some.Load() {
		sg.look()
	}
}

// lookPause is the first pause between two looks that follow each other; it grows up
// to hintPause, so that a storm of news costs little, and a single one hardly waits.
const lookPause = 2 * time.Millisecond

// run looks until there is nothing more to look for.
func (sg *signals) run(ctx context.Context) {
	usual := lookPause
	for sg.next() {
		pause := usual
		usual = min(2*usual, hintPause)
		if err := sg.round(ctx); err != nil {
			sg.m.log.Debug("signals not read, trying again", "error", err)
			pause = jittered(renewRetry)
			sg.mu.Lock()
			sg.wanted = true
			sg.mu.Unlock()
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// next reports whether to look once more. Nobody is asked for anything who holds
// nothing.
func (sg *signals) next() bool {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.looking = sg.wanted && sg.m.ctx.Err() == nil
	if sg.looking && sg.m.sessionLocks.Load() == 0 {
		sg.some.Store(true) // in case that one is on its way
		sg.looking = sg.m.sessionLocks.Load() > 0
	}
	sg.wanted = false
	return sg.looking
}

// round asks for the signals, does what they say, and tells the store which are
// done with.
func (sg *signals) round(ctx context.Context) error {
	var leases []store.LeaseID
	for _, l := range sg.m.book.all() {
		if l.riders.Load() > 0 && l.life.Load() != nil {
			leases = append(leases, l.id)
		}
	}
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sg.m.cfg.StoreTimeout)
	defer cancel()
	found, err := sg.m.st.Signals(ctx, leases)
	if err != nil {
		return err
	}
	sg.some.Store(true) // what arrives while this goes on may be what was just not found
	var heard []store.SignalID
	unplaced := make(map[store.SignalID]time.Time)
	for _, sig := range found {
		if sg.m.obey(sig) || sg.stale(sig, unplaced) {
			heard = append(heard, sig.ID)
		}
	}
	sg.unplaced = unplaced
	if len(unplaced) == 0 {
		sg.some.Store(false)
	}
	if len(heard) == 0 {
		return nil
	}
	return sg.m.st.Heard(ctx, heard)
}

// stale reports whether the grant that a signal means can not be on its way to here
// any more; else it notes since when the signal is known. Renewals bring it again.
func (sg *signals) stale(sig store.Signal, unplaced map[store.SignalID]time.Time) bool {
	now := sg.m.clk.Now()
	since, seen := sg.unplaced[sig.ID]
	if !seen {
		since = now
	}
	if now.Sub(since) > 2*sg.m.cfg.StoreTimeout && sg.m.queue.length(sig.Key) == 0 {
		return true
	}
	unplaced[sig.ID] = since
	return false
}

// obey does what a signal asks for. It reports false when the grant that is meant
// is not known here.
func (m *Manager) obey(sig store.Signal) bool {
	h := m.held.get(sig.Key)
	if h == nil || h.token != sig.Token {
		_, ended := m.ended.get(grantRef{sig.Key, sig.Token})
		return ended
	}
	switch sig.Kind {
	case store.Stop:
		if h.s.stop(h, sig) {
			m.logOf(h.traceparent).Info("holder asked to stop", "key", h.key, "token", h.token, "session", h.s.name, "owner", h.owner)
		}
	case store.Break:
		if m.giveUp(h, LostForced) {
			m.logOf(h.traceparent).Warn("lock broken, somebody asked for it", "key", h.key, "token", h.token, "session", h.s.name, "owner", h.owner)
		}
	}
	return true
}

// stop notes that the holder of h is asked to stop, and tells the app, again only
// if the reason is another; else it reports false.
func (s *Session) stop(h *heldLock, sig store.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[h.key] != h || h.stopping != nil && sameReason(h.stopping.Reason, sig.Reason) {
		return false
	}
	at := sig.At
	if h.stopping != nil {
		at = h.stopping.At
	}
	h.change().stopping = &store.Stopping{Reason: sig.Reason, At: at}
	if !h.part {
		s.tellStopLocked(h)
	}
	return true
}

func (s *Session) tellStopLocked(h *heldLock) {
	if s.onStop != nil && h.stopping != nil {
		s.onStop(Stop{Key: h.key, Token: h.token, Reason: h.stopping.Reason})
	}
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
