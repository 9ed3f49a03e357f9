package lease

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// freeing sends a claim to the lane of releases again and again until the store confirms
// it, or it does not matter any more because the lock's lease is dead. Only the first try
// stands in the trace: in an outage those of all locks would push everything else out of
// the exporter's queue.
type freeing struct {
	m     *Manager
	claim store.Claim
	of    freed
}

// freed hears what becomes of what is freed.
type freed interface {
	// matters reports whether there is something to be freed yet.
	matters() bool
	// wasTried hears the outcome of each try.
	wasTried(err error)
	// isSettled is called once, when no more tries follow.
	isSettled()
}

// submitting is one of the ways into the lane of releases.
type submitting = func(context.Context, store.Claim, func(store.Verdict, error)) error

// free frees what nobody waits for.
func (m *Manager) free(ctx context.Context, c store.Claim, matters func() bool, settled func()) {
	f := &freeing{m: m, claim: c, of: unwatched{matters, settled}}
	f.send(ctx, m.releases.Submit)
}

// send sends the claim, this time by this way. ctx has the span of whoever frees it.
func (f *freeing) send(ctx context.Context, by submitting) {
	// Releases are not limited: what is released was held, and that is limited.
	if err := by(ctx, f.claim, func(v store.Verdict, err error) { f.answered(&v, err) }); err != nil {
		// The manager has stopped; its leases are revoked with all that they hold.
		f.of.wasTried(err)
		f.of.isSettled()
	}
}

// answered hears the answer to a try.
func (f *freeing) answered(v *store.Verdict, err error) {
	err = types.Judged("release", v.Status, err)
	if err != nil && f.of.matters() {
		f.of.wasTried(err)
		again := func() { f.send(context.Background(), f.m.releases.Submit) }
		if !f.m.retries.after(jittered(renewRetry), again) {
			f.of.isSettled()
		}
		return
	}
	if err == nil && v.Status != store.Holds {
		f.m.log.Debug("what was released was not held any more", "key", f.claim.Key, "token", f.claim.Token)
	}
	f.m.heldCache.Drop(f.claim.Key)
	f.of.wasTried(nil)
	f.of.isSettled()
}

// unwatched is what is freed where nobody asks how it went.
type unwatched struct {
	lives func() bool
	done  func()
}

func (u unwatched) matters() bool { return u.lives() }
func (unwatched) wasTried(error)  {}
func (u unwatched) isSettled()    { u.done() }
