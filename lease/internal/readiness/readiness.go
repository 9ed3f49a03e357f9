// Package readiness says whether the store grants locks now.
//
// A store can be usable and still grant nothing: a right is missing, a table is gone, a disk or a memory is full, or
// it has a quiet time. Its own check, which only reads, does not see that. So the outcomes of the sidecar's calls count:
// a failed one is a doubt. A doubt is not a verdict, because one call may fail alone: a [Judge] then probes the store,
// and the probe decides. A probe opens a lease, takes a lock of its own under it, and revokes the lease, which is what most
// calls do. Before the first probe, nothing is known, so the sidecar is not ready. Without a doubt there are no probes.
package readiness

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

const (
	// interval is the least time between two probes.
	interval = time.Second
	// storePause is the pause between two looks at a store that is not usable. They send no statement.
	storePause = 20 * time.Millisecond
	// keyPrefix is what the keys of probes begin with. Each probe has a new one, as many calls have, because the first grant
	// of a key may need a right that later ones do not need.
	keyPrefix = "locksidecar-readiness:"
)

// errUnknown: the first probe has not ended yet.
var errUnknown = errors.New("the store has not granted a first lock yet")

// Judge decides whether a store grants locks now.
type Judge struct {
	cfg    types.Config
	st     store.Store
	doubts chan struct{}
	// left is the lease of a probe that was not revoked, or zero. Only Run uses it.
	left store.LeaseID

	mu sync.Mutex
	// why is why the store grants nothing, or nil.
	why error
	// quiet is until when it grants nothing, if why is a quiet time.
	quiet time.Time
}

// New makes a judge, whose Run probes the store. An engine whose operations never fail needs none.
func New(cfg types.Config, st store.Store) *Judge {
	j := &Judge{cfg: cfg, st: st, doubts: make(chan struct{}, 1)}
	if j.probes() {
		j.why = errUnknown
	}
	return j
}

func (j *Judge) probes() bool { return j.cfg.Probes && !j.st.Traits().Inline }

// Ready is nil if the store grants locks now, as far as the last probe says. It asks nobody.
func (j *Judge) Ready() error {
	left := time.Duration(0)
	if j.probes() {
		left = store.QuietFor(j.st)
	}
	if left > 0 {
		j.doubt() // of several servers, others may grant
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if left > 0 && errors.Is(j.why, errUnknown) { // the store has heard of it before the first probe has
		return types.Quiet(left)
	}
	if j.quiet.IsZero() {
		return j.why
	}
	if left := j.quiet.Sub(j.cfg.Clock.Now()); left > 0 {
		return types.Quiet(left)
	}
	return nil // the next probe follows
}

// doubt requests a probe, and returns at once.
func (j *Judge) doubt() {
	select {
	case j.doubts <- struct{}{}:
	default:
	}
}

// Heard notes the outcome of an operation of the store.
func (j *Judge) Heard(err error) {
	if store.Unavailable(err) && !errors.Is(err, context.Canceled) {
		j.doubt()
	}
}

// HeardAnswers notes the outcome of an acquire.
func (j *Judge) HeardAnswers(answers []store.Answer, err error) {
	j.Heard(err)
	for i := range answers {
		if answers[i].Outcome == store.Quiet {
			j.doubt()
			return
		}
	}
}

// Run probes the store after doubts, and as long as it grants nothing, until ctx ends.
func (j *Judge) Run(ctx context.Context) {
	for j.probes() {
		if j.granting() && j.left == uuid.Nil {
			select {
			case <-ctx.Done():
				return
			case <-j.doubts:
			}
		}
		for j.st.Ready() != nil { // it says itself why it is not ready
			if clock.Rest(ctx, storePause) != nil {
				return
			}
		}
		select { // this probe decides about earlier doubts, too
		case <-j.doubts:
		default:
		}
		decided, why := j.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		if decided {
			j.become(why)
		}
		if clock.Rest(ctx, interval) != nil {
			return
		}
	}
}

func (j *Judge) granting() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.why == nil
}

// become notes what a probe has found, and logs each change.
func (j *Judge) become(why error) {
	quiet, isQuiet := errors.AsType[*types.QuietError](why)
	j.mu.Lock()
	was := j.why
	if j.why, j.quiet = why, (time.Time{}); isQuiet {
		j.quiet = j.cfg.Clock.Now().Add(quiet.Left)
	}
	j.mu.Unlock()
	_, wasQuiet := errors.AsType[*types.QuietError](was)
	switch {
	case why == nil && was != nil && !errors.Is(was, errUnknown):
		j.cfg.Logger.Info("the store grants locks again")
	case isQuiet && wasQuiet: // the rest of the time is another one
	case why != nil && (was == nil || was.Error() != why.Error()):
		j.cfg.Logger.Warn("the store grants no locks, so this sidecar is not ready", "error", why)
	}
}

// probe takes a lock and gives it up. decided is false if that says nothing about other locks.
func (j *Judge) probe(ctx context.Context) (decided bool, why error) {
	if err := j.revoke(ctx); err != nil {
		return judged(err)
	}
	limited, cancel := context.WithTimeout(ctx, j.cfg.StoreTimeout)
	defer cancel()
	lease := store.NewLease{ID: uuid.New(), TTL: j.cfg.TTL}
	if err := j.st.OpenLeases(limited, []store.NewLease{lease}); err != nil {
		return judged(err)
	}
	id := uuid.New()
	ask := store.Ask{Attempt: store.Attempt{Key: keyPrefix + id.String(), ID: id}, Lease: lease.ID}
	answers, err := j.st.Acquire(limited, []store.Ask{ask})
	j.left = lease.ID
	_ = j.revoke(ctx) // if it fails, the next probe follows, and begins with it
	switch {
	case err != nil:
		return judged(err)
	case answers[0].Outcome == store.Quiet:
		return true, types.Quiet(answers[0].QuietFor)
	case answers[0].Outcome == store.Granted:
		return true, nil
	default: // such as the loss of the lease
		return false, nil
	}
}

// revoke ends the lease of the last probe and frees its lock, also after the end of ctx, so that a stop leaves nothing.
// It is tried again until it succeeds, and there is no new lease before, so probes leave at most one lease to expire.
func (j *Judge) revoke(ctx context.Context) error {
	if j.left == uuid.Nil {
		return nil
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.cfg.StoreTimeout)
	defer cancel()
	err := j.st.Revoke(limited, []store.LeaseID{j.left})
	if err == nil {
		j.left = uuid.Nil
	}
	return err
}

// judged is the verdict of an error. A store that refuses by its configuration, such as a role that may only
// read, is as ready as it will ever be.
func judged(err error) (decided bool, why error) {
	if !store.Unavailable(err) {
		return true, nil
	}
	return true, err
}
