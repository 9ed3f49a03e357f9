// Package lanes makes the lanes through which calls share the store's operations. Renewals and checks have
// no lane, because they are batches already and must not wait.
package lanes

import (
	"context"
	"errors"
	"math"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/readiness"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Set contains a lane for each operation.
type Set struct {
	Acquires    *batcher.Lane[store.Ask, store.Answer]
	Enqueues    *batcher.Lane[store.Ask, store.Answer]
	Cancels     *batcher.Lane[store.Attempt, store.Answer]
	Releases    *batcher.Lane[store.Claim, store.Verdict]
	Amends      *batcher.Lane[Amendment, store.Amended]
	Reads       *batcher.Lane[string, store.Lock]
	Withdrawals *batcher.Lane[store.Attempt, store.Outcome]
	Signals     *batcher.Lane[store.Signal, store.ClaimStatus]
	Openings    *batcher.Lane[store.NewLease, struct{}]
	Revocations *batcher.Lane[store.LeaseID, struct{}]

	// together are the bits of what Together returns.
	together atomic.Uint64
}

// Together is an average over about the last togetherOf acquires.
const togetherOf = 256

// Together is how many acquires were in the statement of an acquire, on average over the last ones: what a single call costs the store is a
// statement, divided by this.
func (ls *Set) Together() float64 { return math.Float64frombits(ls.together.Load()) }

// note counts the acquires of a statement. The lane runs one statement at a time. A retry of an item whose row is locked runs beside it, and one of
// two notes at the same moment may be lost.
func (ls *Set) note(acquires int) {
	average, n := ls.Together(), float64(acquires)
	ls.together.Store(math.Float64bits(average + (n-average)*min(n/togetherOf, 1)))
}

// maxEnqueues limits the calls that one statement enqueues. All may be for one key, and releases wait for
// its row. A thousand calls would keep it about as long as a release waits for a row (0.1 s).
const maxEnqueues = 250

// perKey limits the acquires and releases of a key in one statement. A thousand readers of a key need no thousand
// statements. But each share that is taken reads the others, and other sidecars wait for the row meanwhile.
const perKey = 50

// New makes the lanes to a store, whose outcomes they tell the judge. Once draining is closed, the lane of acquires refuses.
func New(cfg types.Config, st store.Store, obs *observe.Observer, judge *readiness.Judge, draining <-chan struct{}) *Set {
	ls := &Set{}
	ls.together.Store(math.Float64bits(1))
	heard := func(ask func(context.Context, []store.Ask) ([]store.Answer, error)) func(context.Context, []store.Ask) ([]store.Answer, error) {
		return func(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
			answers, err := ask(ctx, asks)
			judge.HeardAnswers(answers, err)
			return answers, err
		}
	}
	inline := st.Traits().Inline
	lane := batcher.Config{Max: cfg.BatchMax, Timeout: cfg.StoreTimeout, Inline: inline}
	bounded := lane
	bounded.Room = max(cfg.MaxWaiters, cfg.BatchMax)
	byKey := func(a store.Ask) string { return a.Key }
	locked := func(a store.Answer) bool { return a.Outcome == store.RowLocked }
	acquires := bounded
	acquires.Refuse = draining
	acquires.PerKey = perKey
	acquire := heard(st.Acquire)
	ls.Acquires = batcher.New(obs.Lane("acquire", acquires), byKey, func(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
		ls.note(len(asks))
		return acquire(ctx, asks)
	}, locked)
	// Enqueues of one key share a statement, in their order. Only the queue limits them, because answers of
	// another lane submit some of them, and must not wait.
	enqueues := lane
	enqueues.Max = min(lane.Max, maxEnqueues)
	enqueues.PerKey = enqueues.Max
	ls.Enqueues = batcher.New(obs.Lane("enqueue", enqueues), byKey, heard(st.Enqueue), locked)
	ls.Amends = batcher.New(obs.Lane("amend", bounded), func(a Amendment) string { return a.Key }, told(judge, amender(st)),
		func(a store.Amended) bool { return a.Status == store.ClaimRowLocked })
	ls.Reads = batcher.New(obs.Lane("get", bounded), func(key string) string { return key }, st.Get, nil)
	ls.Signals = batcher.New(obs.Lane("signal", bounded), func(s store.Signal) string { return s.Key }, st.Signal,
		func(s store.ClaimStatus) bool { return s == store.ClaimRowLocked })
	apart := lane
	apart.Inline = false // they may hang, and have their own limit
	ls.Openings = batcher.New(obs.Lane("open", apart), func(l store.NewLease) string { return string(l.ID[:]) }, told(judge, forAll(st.OpenLeases)), nil)
	ls.Revocations = batcher.New(obs.Lane("revoke", apart), func(l store.LeaseID) string { return string(l[:]) }, forAll(st.Revoke), nil)
	// A lane that hands back has no limit, because the grants that it frees are limited.
	byGrant := func(a store.Attempt) string { return string(a.ID[:]) }
	ls.Cancels = batcher.New(obs.Lane("cancel", lane), byGrant, st.Cancel, locked)
	ls.Withdrawals = batcher.New(obs.Lane("withdraw", lane), byGrant, st.Withdraw, func(o store.Outcome) bool { return o == store.RowLocked })
	releases := lane
	releases.PerKey = perKey
	ls.Releases = batcher.New(obs.Lane("release", releases), func(c store.Claim) string { return c.Key }, told(judge, st.Release),
		func(v store.Verdict) bool { return v.Status == store.ClaimRowLocked })
	if j, ok := st.(store.Joiner); ok {
		batcher.Join(ls.Acquires, ls.Releases, func(ctx context.Context, asks []store.Ask, claims []store.Claim) ([]store.Answer, error, []store.Verdict, error) {
			ls.note(len(asks))
			answers, acquireErr, verdicts, releaseErr := j.AcquireAndRelease(ctx, asks, claims)
			judge.HeardAnswers(answers, acquireErr)
			judge.Heard(releaseErr)
			return answers, acquireErr, verdicts, releaseErr
		})
	}
	if one, ok := st.(store.Immediate); ok && inline {
		ls.Acquires.Alone(one.AcquireOne)
		ls.Releases.Alone(one.ReleaseOne)
	}
	return ls
}

// told tells the judge of an operation's errors.
func told[T, R any](judge *readiness.Judge, f func(context.Context, []T) ([]R, error)) func(context.Context, []T) ([]R, error) {
	return func(ctx context.Context, items []T) ([]R, error) {
		results, err := f(ctx, items)
		judge.Heard(err)
		return results, err
	}
}

// forAll adapts an operation without answers to a lane.
func forAll[T any](f func(context.Context, []T) error) func(context.Context, []T) ([]struct{}, error) {
	return func(ctx context.Context, items []T) ([]struct{}, error) {
		return make([]struct{}, len(items)), f(ctx, items)
	}
}

// Submit passes one item to a lane and waits for the answer. ctx is that of a caller of package lease: if it ends, the
// error is that of [types.Left], and the operation continues.
func Submit[T, R any](ctx context.Context, lane *batcher.Lane[T, R], item T) (R, error) {
	return SubmitAnd(ctx, lane, item, func(R) {})
}

// SubmitAnd is Submit, but also calls then with the answer, even if the caller has left. It does not call
// then after an error.
func SubmitAnd[T, R any](ctx context.Context, lane *batcher.Lane[T, R], item T, then func(R)) (R, error) {
	r, err := submit(ctx, lane, item, then)
	return r, Refusal(ctx, err)
}

// SubmitOwn is Submit for the sidecar's own work, which has no caller that could leave. If ctx ends, the store has not
// answered in time, so the outcome of the operation op is unknown.
func SubmitOwn[T, R any](ctx context.Context, lane *batcher.Lane[T, R], op string, item T) (R, error) {
	r, err := submit(ctx, lane, item, func(R) {})
	switch {
	case errors.Is(err, batcher.ErrStopped):
		err = types.ErrDraining
	case err != nil && ctx.Err() != nil:
		err = &store.Error{Op: op, Err: context.Cause(ctx), Unknown: true}
	}
	return r, err
}

func submit[T, R any](ctx context.Context, lane *batcher.Lane[T, R], item T, then func(R)) (R, error) {
	type answer struct {
		r   R
		err error
	}
	done := make(chan answer, 1)
	err := lane.Submit(ctx, item, func(r R, err error) {
		if err == nil {
			then(r)
		}
		done <- answer{r, err}
	})
	if err != nil {
		return *new(R), err
	}
	select {
	case a := <-done:
		return a.r, a.err
	case <-ctx.Done():
		return *new(R), context.Cause(ctx)
	}
}

// Refusal translates an error of a lane, or of the store, for the caller whose context ctx is.
func Refusal(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, batcher.ErrStopped):
		return types.ErrDraining
	case ctx.Err() != nil:
		return types.Left(ctx)
	default:
		return err
	}
}
