package holdings

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Release is the release of a lock, until there is no further try. It is made before the lock leaves its session. From then on the
// session remembers it, and the [Releaser] (attempt/release.go) tries it. Tried notes a try, and Settle that none follows. The call that released
// waits for the first try (AwaitFirst), a repeated call for the last one (AwaitLast).
type Release struct {
	Lock *Lock
	// Claim is what the store is told. The Releaser completes it before the first try. Its token is that of the lock, or an earlier one of the
	// same grant.
	Claim   store.Claim
	HeldFor time.Duration
	// ToStore: the store must free the lock instead of the cohort, because the holder was asked to stop, or the lock may be
	// shared. It is decided when the lock leaves its session.
	ToStore bool

	// reentry is the required number of entries; 0 means any. means selects the entry that ends; nil selects the newest.
	reentry int
	means   func(entry) bool
	// undelivered: the grant was not reported to a caller. ofSession: the session has ended.
	undelivered, ofSession bool
	// onSettled is called after the last try; it may be nil.
	onSettled func()

	// Tried and Settle write the following fields, AwaitFirst and AwaitLast read them.
	mu sync.Mutex
	// err is the outcome of the last try.
	err error
	// tried: there was a try. settled: there will be no further one.
	tried, settled bool
	// afterFirst is closed after the first try, afterLast after the last. Both are nil until a caller waits.
	afterFirst, afterLast chan struct{}
}

// NewRelease makes the release of h. settled, which may be nil, is called after the last try.
func (h *Lock) NewRelease(req *types.ReleaseRequest, now time.Time, settled func()) *Release {
	r := &Release{Lock: h, Claim: h.Claim(), HeldFor: h.heldFor(now), reentry: req.Reentry, onSettled: settled}
	if req.RequestID != uuid.Nil {
		r.means = func(e entry) bool { return e.request == req.RequestID }
	}
	r.Claim.Outcome, r.Claim.Result, r.Claim.Traceparent = req.Outcome, req.Result, req.Traceparent
	return r
}

// newUnrequestedRelease makes a release without a request, in the trace of the acquire.
func (h *Lock) newUnrequestedRelease(settled func()) *Release {
	return h.NewRelease(&types.ReleaseRequest{Traceparent: h.Traceparent}, h.s.set.clk.Now(), settled)
}

// Matters reports whether another try is useful: until the lease's deadline, which renewals move, or while a MinHold must be cut short.
func (r *Release) Matters() bool {
	now := r.Lock.s.set.clk.Now()
	return now.Before(r.Lock.Lease().Deadline()) || r.Claim.AtOnce && r.Lock.heldFor(now) < r.Lock.minHold
}

// Tried records the outcome of a try.
func (r *Release) Tried(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.tried = err, true
	if r.afterFirst != nil {
		close(r.afterFirst)
		r.afterFirst = nil
	}
}

// Settle ends the release: no try follows. It wakes those who wait for that, records the grant's end, and unpins the lease.
func (r *Release) Settle() {
	s := r.Lock.s
	var lost types.LostReason
	if confirmed := r.endTries(); !confirmed {
		lost = r.Lock.Lease().LossReason()
	}
	s.set.ends.releaseSettled(grantRef{r.Lock.Key, r.Lock.Token}, lost)
	s.forgetRelease(r)
	if r.onSettled != nil {
		r.onSettled()
	}
}

// endTries records that no try follows, and reports whether the last one succeeded.
func (r *Release) endTries() (confirmed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settled = true
	if r.afterLast != nil {
		close(r.afterLast)
	}
	return r.err == nil
}

// settles is closed when no further try follows.
func (r *Release) settles() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.afterLast == nil {
		r.afterLast = make(chan struct{})
		if r.settled {
			close(r.afterLast)
		}
	}
	return r.afterLast
}

// lastTryFailed reports whether the last try failed; there may be further ones.
func (r *Release) lastTryFailed() bool {
	_, err := r.state()
	return err != nil
}

// state returns whether there will be no further try, and the error of the last one.
func (r *Release) state() (settled bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settled, r.err
}

// AwaitLast answers a repeated release while the first is still being tried, within a time limit.
func (r *Release) AwaitLast(ctx context.Context, within time.Duration) (types.Released, error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	released, err := r.wait(limited, r.settles())
	if err == nil || ctx.Err() != nil { // the store has confirmed the release, or the caller has left
		return released, err
	}
	switch settled, failure := r.state(); {
	case settled && failure != nil: // the lease ended before the store confirmed the release, and the lock with it
		return types.Released{}, &types.LostError{Lost: types.Lost{Key: r.Lock.Key, Token: r.Lock.Token, Reason: r.Lock.Lease().LossReason()}}
	case failure != nil: // further tries follow
		return types.Released{}, failure
	default: // no try has been answered within the limit
		return types.Released{}, &store.Error{Op: "release", Err: errors.New("an earlier release is not confirmed yet")}
	}
}

// AwaitFirst waits for the outcome of the first try, within the patience of the call.
func (r *Release) AwaitFirst(ctx context.Context, patience *types.PatienceTimer) (types.Released, error) {
	r.mu.Lock()
	if r.tried {
		defer r.mu.Unlock()
		return types.Released{Key: r.Lock.Key, HeldFor: r.HeldFor}, r.err
	}
	if r.afterFirst == nil {
		r.afterFirst = make(chan struct{})
	}
	first := r.afterFirst
	r.mu.Unlock()
	select {
	case <-first:
	case <-ctx.Done():
	case <-patience.Over():
		return types.Released{}, types.Silence("release", patience.Timeout, true)
	}
	return r.wait(ctx, first)
}

func (r *Release) wait(ctx context.Context, there <-chan struct{}) (types.Released, error) {
	select {
	case <-there:
	case <-ctx.Done():
		return types.Released{}, types.Left(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return types.Released{Key: r.Lock.Key, HeldFor: r.HeldFor}, r.err
}

// addReleaseLocked records a release until it is settled. The caller holds s.mu.
func (s *Session) addReleaseLocked(r *Release) {
	if r == nil {
		return
	}
	r.ToStore = r.Lock.stopping != nil || r.Lock.IsDowngraded()
	if s.ended {
		return
	}
	if s.releasing == nil {
		s.releasing = make(map[*Release]struct{})
	}
	s.releasing[r] = struct{}{}
}

func (s *Session) forgetRelease(r *Release) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Lock.unpinLocked()
	delete(s.releasing, r)
}

// ReleasesOf returns the releases of a key that are under way.
func (s *Session) ReleasesOf(key string) (under []*Release) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.releasing {
		if r.Lock.Key == key {
			under = append(under, r)
		}
	}
	return under
}
