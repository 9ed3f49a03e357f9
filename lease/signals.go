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

	mu        sync.Mutex
	polling   bool
	pollAgain bool

	// unmatched are signals for grants that are not known here, by when they were first
	// seen: a grant may still be on its way to here. Only the look under way uses them;
	// hasUnmatched: a session that gets a lock makes another poll follow.
	unmatched    map[store.SignalID]time.Time
	hasUnmatched atomic.Bool
}

func newSignals(m *Manager) *signals {
	return &signals{m: m, unmatched: make(map[store.SignalID]time.Time)}
}

// poll makes the store be asked for signals soon. It does not block.
func (sg *signals) poll() {
	sg.mu.Lock()
	defer sg.mu.Unlock()
	sg.pollAgain = true
	if !sg.polling {
		sg.polling = sg.m.spawn(func() { sg.run(sg.m.ctx) })
	}
}

// granted hears that a session has got a lock, for which there may be a signal.
func (sg *signals) granted() {
	if sg.hasUnmatched.Load() {
		sg.poll()
	}
}

// signalPause is the first pause between two polls that follow each other; it grows up
// to hintPause, so that a storm of news costs little, and a single one hardly waits.
const signalPause = 2 * time.Millisecond

// run polls until nobody has asked for another poll.
func (sg *signals) run(ctx context.Context) {
	usual := signalPause
	for sg.next() {
		pause := usual
		usual = min(2*usual, hintPause)
		if err := sg.round(ctx); err != nil {
			sg.m.log.Debug("signals not read, trying again", "error", err)
			pause = jittered(renewRetry)
			sg.mu.Lock()
			sg.pollAgain = true
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
	sg.polling = sg.pollAgain && sg.m.ctx.Err() == nil
	if sg.polling && sg.m.sessionLocks.Load() == 0 {
		sg.hasUnmatched.Store(true) // in case that one is on its way
		sg.polling = sg.m.sessionLocks.Load() > 0
	}
	sg.pollAgain = false
	return sg.polling
}

// round asks for the signals, does what they say, and tells the store which are
// done with.
func (sg *signals) round(ctx context.Context) error {
	var leases []store.LeaseID
	for _, l := range sg.m.leases.all() {
		if l.users.Load() > 0 && l.life.Load() != nil {
			leases = append(leases, l.id)
		}
	}
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sg.m.cfg.StoreTimeout)
	defer cancel()
	signaler, err := store.As[store.Signaler](sg.m.st, store.FeatureStop)
	if err != nil {
		return nil // nobody can be asked for anything
	}
	found, err := signaler.Signals(ctx, leases)
	if err != nil {
		return err
	}
	sg.hasUnmatched.Store(true) // what arrives while this goes on may be what was just not found
	var acknowledged []store.SignalID
	unmatched := make(map[store.SignalID]time.Time)
	for _, sig := range found {
		if sg.m.applySignal(sig) || sg.stale(sig, unmatched) {
			acknowledged = append(acknowledged, sig.ID)
		}
	}
	sg.unmatched = unmatched
	if len(unmatched) == 0 {
		sg.hasUnmatched.Store(false)
	}
	if len(acknowledged) == 0 {
		return nil
	}
	return signaler.Acknowledge(ctx, acknowledged)
}

// stale reports whether the grant that a signal means can not be on its way to here
// any more; else it notes since when the signal is known. Renewals bring it again.
func (sg *signals) stale(sig store.Signal, unmatched map[store.SignalID]time.Time) bool {
	now := sg.m.clk.Now()
	since, seen := sg.unmatched[sig.ID]
	if !seen {
		since = now
	}
	if now.Sub(since) > 2*sg.m.cfg.StoreTimeout && sg.m.queue.length(sig.Key) == 0 {
		return true
	}
	unmatched[sig.ID] = since
	return false
}

// applySignal does what a signal asks for. It reports false when the grant that is meant
// is not known here.
func (m *Manager) applySignal(sig store.Signal) bool {
	h := m.held.get(sig.Key)
	if h == nil || h.token != sig.Token {
		_, ended := m.recentEnds.get(grantRef{sig.Key, sig.Token})
		return ended
	}
	switch sig.Kind {
	case store.Stop:
		if h.s.stop(h, sig) {
			m.obs.AskedToStop(h.observed())
		}
	case store.Break:
		if m.giveUp(h, LostForced) {
			m.obs.Broken(h.observed())
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
	if !h.unpublished {
		s.notifyStopLocked(h)
	}
	return true
}

func (s *Session) notifyStopLocked(h *heldLock) {
	if s.onStop != nil && h.stopping != nil {
		s.onStop(Stop{Key: h.key, Token: h.token, Reason: h.stopping.Reason})
	}
}

func sameReason(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }
