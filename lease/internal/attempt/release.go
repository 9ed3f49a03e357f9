package attempt

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// submit passes a claim to the lane of releases: [batcher.Lane.Submit], or Do in the goroutine of a caller that waits.
type submit = func(ctx context.Context, c store.Claim, answered func(store.Verdict, error)) error

// Release releases a lock that has left its session, in the background.
func (aq *Acquirer) Release(r *holdings.Release) {
	aq.release(r.Lock.Span().Context(), aq.lanes.Releases.Submit, r, false)
}

// ReleaseAndWait releases a lock that has left its session, and returns the outcome of the first try. ctx is the call's. If the
// call leaves, the release goes on.
func (aq *Acquirer) ReleaseAndWait(ctx context.Context, r *holdings.Release) (types.Released, error) {
	aq.release(aq.obs.Along(context.Background(), ctx), aq.lanes.Releases.Do, r, true)
	return r.AwaitFirst(ctx, &aq.patience)
}

// release tells how a lock is released after it has left its session. byApp: the app has released it, and the session goes on.
func (aq *Acquirer) release(ctx context.Context, by submit, r *holdings.Release, byApp bool) {
	// The app never knew of an undelivered lock, so its MinHold does not apply.
	r.Claim.AtOnce = r.Claim.AtOnce || r.Lock.IsUndelivered()
	// If the next calls in the queue are this sidecar's, one of them gets the lock, and the store learns that later.
	// If nobody waits, the sidecar may keep the key for its next call.
	if aq.handOn(r) || aq.keep(r, byApp) {
		r.Tried(nil)
		r.Settle()
		return
	}
	// The store frees the lock, or hands it off to the next waiter. It is told whether that waiter may be here.
	r.Claim.Awaited = aq.Queue.Length(r.Claim.Key) > 0 || aq.wasRecalled(r.Lock)
	aq.sendRelease(ctx, by, r)
}

// sendRelease sends the claim until the store confirms it, or no try can matter any more: the lock's lease is dead. It is persist
// (cleanup.go) for releases: persist makes 3 more objects for each (13 instead of 10, by go test -bench AcquireRelease -benchmem ./lease).
func (aq *Acquirer) sendRelease(ctx context.Context, by submit, r *holdings.Release) {
	answered := func(v store.Verdict, err error) {
		if aq.releaseAnswered(r, &v, err) || !aq.later.Retry(func() { aq.sendRelease(context.Background(), aq.lanes.Releases.Submit, r) }) {
			aq.settleRelease(r)
		}
	}
	// Releases have no limit of their own, because locks have one.
	if err := by(ctx, r.Claim, answered); err != nil {
		// The manager has stopped. The revocation of its leases ends their locks.
		r.Tried(err)
		aq.settleRelease(r)
	}
}

// releaseAnswered notes the answer to a try. It reports whether that was the last one: the release is confirmed, or cannot matter any
// more.
func (aq *Acquirer) releaseAnswered(r *holdings.Release, v *store.Verdict, err error) (last bool) {
	if err = types.ClaimError("release", v.Status, err); err != nil {
		r.Tried(err)
		return !r.Matters()
	}
	if v.Status != store.Holds { // the app does not have it in any case, so the release has succeeded
		aq.cfg.Logger.Debug("a released lock was not held any more", "key", r.Claim.Key, "token", r.Claim.Token)
	} else {
		aq.noteReleased(r.Lock)
	}
	aq.heldCache.Drop(r.Claim.Key)
	r.Tried(nil)
	return true
}

// settleRelease ends a release by the store. If the lock's call was in the queue, that call may come back from now on.
func (aq *Acquirer) settleRelease(r *holdings.Release) {
	if memberOf(r.Lock) != nil {
		aq.Freed(r.Claim.Key)
	}
	r.Settle()
}

// HandBack hands back, in the background, a grant or an entry whose answer could not be delivered.
func (aq *Acquirer) HandBack(s *holdings.Session, g types.Grant) {
	if g.Bind == types.BindTTL {
		aq.handBackTTL(g)
		return
	}
	if r := s.HandBack(g); r != nil {
		aq.Release(r)
	}
}

// ReleaseLost releases, in the background, a lost lock that the store may still keep.
func (aq *Acquirer) ReleaseLost(s *holdings.Session, req *types.ReleaseRequest) {
	if r := s.ReleaseLost(req); r != nil {
		aq.Release(r)
	}
}
