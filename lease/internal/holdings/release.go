package holdings

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Sender sends releases to the store.
type Sender interface {
	// Release sends a release without blocking, and repeats it until the store confirms it or Matters is
	// false. ctx has the release's span.
	Release(ctx context.Context, r *Release)
	// ReleaseInCaller is Release for a caller that waits for the first try. It may run the statement in the
	// caller's goroutine.
	ReleaseInCaller(ctx context.Context, r *Release)
}

// Release is the release of a lock that its session gave up.
type Release struct {
	h       *Lock
	claim   store.Claim
	HeldFor time.Duration
	// reentry is the required number of entries; 0 means any.
	reentry int
	// undelivered: the grant was not reported to a caller. atOnce: a MinHold is not kept. ofSession: the
	// session has ended.
	undelivered, atOnce, ofSession bool
	// toStore: the release goes to the store instead of the cohort, because the holder was asked to stop, or
	// the lock may be shared.
	toStore bool
	// means selects the entry that ends; nil selects the newest.
	means func(entry) bool
	// done is called when the release is settled; it may be nil.
	done func()

	mu sync.Mutex
	// err is the outcome of the last try.
	err error
	// tried: there was a try. over: there will be no further try.
	tried, over bool
	// first is closed after the first try, settled after the last. Both are nil until a caller waits.
	first, settled chan struct{}
}

// NewRelease makes the release of h. settled, which may be nil, is called after the last try.
func (h *Lock) NewRelease(req *types.ReleaseRequest, now time.Time, settled func()) *Release {
	r := &Release{h: h, claim: h.Claim(), HeldFor: h.heldFor(now), reentry: req.Reentry, done: settled}
	if req.RequestID != uuid.Nil {
		r.means = func(e entry) bool { return e.request == req.RequestID }
	}
	r.claim.Outcome, r.claim.Result, r.claim.Traceparent = req.Outcome, req.Result, req.Traceparent
	return r
}

// newEnd makes a release without a request, in the trace of the acquire.
func (h *Lock) newEnd(settled func()) *Release {
	return h.NewRelease(&types.ReleaseRequest{Traceparent: h.Traceparent}, h.s.set.clk.Now(), settled)
}

func (r *Release) send() {
	if !r.prepared().handOn() {
		r.h.s.set.cfg.Sender.Release(r.h.span.Context(), r)
	}
}

// SendAndWait sends a release and returns the outcome of the first try. ctx is the call's.
func (r *Release) SendAndWait(ctx context.Context) (types.Released, error) {
	set := r.h.s.set
	if !r.prepared().handOn() {
		set.cfg.Sender.ReleaseInCaller(set.obs.Along(context.Background(), ctx), r)
	}
	return r.answer(ctx)
}

// prepared completes the release after the session has given the lock up.
func (r *Release) prepared() *Release {
	// The app never knew of an unpublished lock, so its MinHold does not apply. From now on it cannot be published.
	r.claim.AtOnce = r.atOnce || r.h.unpublished
	r.claim.Awaited = r.h.s.set.cfg.QueueLength(r.claim.Key) > 0
	return r
}

// Passed is a released lock for the next attempt of its cohort.
type Passed struct {
	*Lock
	// Grant is the grant for that attempt.
	Grant store.Answer
}

// handOn gives the lock to the next attempt of its cohort. It returns false if the store must do that.
func (r *Release) handOn() bool {
	h, c := r.h, r.h.cohort
	if c == nil || r.claim.Outcome != store.NoOutcome || r.claim.AtOnce || r.toStore {
		return false
	}
	set := h.s.set
	if t := clock.Read(set.clk); !t.Now.Before(c.Until) || !h.Lease().Alive(t) {
		return false
	}
	next := store.Answer{
		Outcome: store.Granted, Token: h.Token + 1, AcquiredAt: h.acquired().Add(r.HeldFor), HandedBy: r.claim.Traceparent,
	}
	served, given := set.cfg.HandOn(Passed{h, next})
	if !given {
		r.claim.Served = served
		return false
	}
	c.handedOn.Store(true)
	r.WasTried(nil)
	r.IsSettled()
	return true
}

// Claim names the lock.
func (r *Release) Claim() store.Claim { return r.claim }

// Matters reports whether the store may still have the lease, or the release must end a MinHold that still keeps the key.
func (r *Release) Matters() bool {
	now := r.h.s.set.clk.Now()
	return r.h.Lease().UntilDeadline(now) > 0 || r.claim.AtOnce && r.h.heldFor(now) < r.h.minHold
}

// WasTried records the outcome of a try.
func (r *Release) WasTried(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.tried = err, true
	if r.first != nil {
		close(r.first)
		r.first = nil
	}
}

// IsSettled ends the lock's use of its lease.
func (r *Release) IsSettled() {
	s := r.h.s
	var lost types.LostReason
	if !r.settle() {
		lost = r.h.Lease().LossReason()
	}
	s.set.ends.settled(grantRef{r.claim.Key, r.claim.Token}, lost)
	s.freed(r)
	if r.h.cohort != nil && !r.h.HandedOn() {
		s.set.cfg.Freed(r.claim.Key)
	}
	if r.done != nil {
		r.done()
	}
}

// settle records that there will be no further try, and reports whether the last one succeeded.
func (r *Release) settle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.settled != nil {
		close(r.settled)
	}
	return r.err == nil
}

// end is closed after the last try.
func (r *Release) end() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled == nil {
		r.settled = make(chan struct{})
		if r.over {
			close(r.settled)
		}
	}
	return r.settled
}

// failed reports whether the last try failed; there may be further ones.
func (r *Release) failed() bool {
	_, err := r.state()
	return err != nil
}

// state returns whether there will be no further try, and the error of the last one.
func (r *Release) state() (over bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over, r.err
}

// Again answers a repeated release while the first is still being tried, within a time limit. If the lease ended before
// the store confirmed the release, the lock ended with it, so it was lost.
func (r *Release) Again(ctx context.Context, within time.Duration) (types.Released, error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	released, err := r.wait(limited, r.end())
	if err == nil || ctx.Err() != nil {
		return released, err
	}
	over, last := r.state()
	switch {
	case over && last != nil:
		return types.Released{}, &types.LostError{Lost: types.Lost{Key: r.claim.Key, Token: r.claim.Token, Reason: r.h.Lease().LossReason()}}
	case last != nil:
		return types.Released{}, last
	}
	return types.Released{}, &store.Error{Op: "release", Err: errors.New("an earlier release is not confirmed yet")}
}

func (r *Release) answer(ctx context.Context) (types.Released, error) {
	r.mu.Lock()
	if r.tried {
		defer r.mu.Unlock()
		return types.Released{Key: r.h.Key, HeldFor: r.HeldFor}, r.err
	}
	if r.first == nil {
		r.first = make(chan struct{})
	}
	first := r.first
	r.mu.Unlock()
	return r.wait(ctx, first)
}

func (r *Release) wait(ctx context.Context, there <-chan struct{}) (types.Released, error) {
	select {
	case <-there:
	case <-ctx.Done():
		return types.Released{}, errors.Join(types.ErrCallerLeft, context.Cause(ctx))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return types.Released{Key: r.h.Key, HeldFor: r.HeldFor}, r.err
}

// freesLocked records a release until it is settled. The caller holds s.mu.
func (s *Session) freesLocked(r *Release) {
	if r == nil {
		return
	}
	r.toStore = r.h.stopping != nil || r.h.IsDowngraded()
	if s.ended {
		return
	}
	if s.freeing == nil {
		s.freeing = make(map[*Release]struct{})
	}
	s.freeing[r] = struct{}{}
}

func (s *Session) freed(r *Release) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.h.letGoLocked()
	delete(s.freeing, r)
}

// FreeingOf returns the releases of a key that are under way.
func (s *Session) FreeingOf(key string) (under []*Release) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.freeing {
		if r.h.Key == key {
			under = append(under, r)
		}
	}
	return under
}
