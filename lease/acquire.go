package lease

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/attempt"
	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// Acquire gets a lock for a session, or a BindTTL lock, for which s is ignored and may be nil. It returns
// when the lock is granted or refused, or when the request's wait is over. When ctx ends, it returns
// [ErrCallerLeft], and a later grant is handed back.
//
// Errors: [HeldError], [TimeoutError], [SkippedError], [LimitError], [ErrSessionEnded], [ErrDraining],
// [ErrCallerLeft], [ErrWithdrawn], and those of the store.
func (m *Manager) Acquire(ctx context.Context, s *holdings.Session, req types.Request) (types.Grant, error) {
	began := m.begins(&req)
	g, err := m.acquirer.Acquire(ctx, s, &req) // see attempt.Call.Run
	err = blameCaller(ctx, err)
	m.nameHolder(&req, err)
	m.addQuiet(err)
	m.acquired(ctx, &req, began, &g, err)
	return g, err
}

// AcquireAll gets several locks, all or none; see Acquire. The keys are different; req.Key is ignored. The
// grants are in the order of the keys. A MaxHold counts from the grant of each lock, so the caller has
// checked that Wait is shorter. Errors: those of Acquire, which name the key, and [InvalidError].
func (m *Manager) AcquireAll(ctx context.Context, s *holdings.Session, keys []string, req types.Request) ([]types.Grant, error) {
	began := m.begins(&req)
	grants, err := m.groups.Acquire(ctx, s, keys, &req)
	err = blameCaller(ctx, err)
	m.nameHolder(&req, err)
	m.addQuiet(err)
	m.acquiredAll(ctx, keys, &req, began, grants, err)
	return grants, err
}

// blameCaller: when a connection closes, its call is canceled, then its session ends. A wait may see the second first.
// Its error names the cause.
func blameCaller(ctx context.Context, err error) error {
	if errors.Is(err, types.ErrSessionEnded) && ctx.Err() != nil {
		return errors.Join(types.ErrCallerLeft, context.Cause(ctx))
	}
	return err
}

// addQuiet adds the rest of a quiet time to a refusal, if no session holds the key: it has no holder, or a bind:ttl lock.
func (m *Manager) addQuiet(err error) {
	if err == nil {
		return
	}
	if held, is := errors.AsType[*types.HeldError](err); is && held.Lock.Holder.Session == "" {
		held.Quiet = store.QuietFor(m.st)
	}
	if timeout, is := errors.AsType[*types.TimeoutError](err); is && timeout.Lock.Holder.Session == "" {
		timeout.Quiet = store.QuietFor(m.st)
	}
}

// holderPatience limits how much later a wait ends because the store is asked who holds the key.
const holderPatience = 100 * time.Millisecond

// nameHolder makes the error of a wait in vain name who holds the key now, because the last answer may be as old as the wait. The
// store is asked only if the answer is older than those of the held cache, and this sidecar does not hold the key: once for
// all calls whose waits for the key end together. If it does not answer soon, the error keeps the holder of the last answer.
func (m *Manager) nameHolder(req *types.Request, err error) {
	e, ok := errors.AsType[*types.TimeoutError](err)
	if !ok || e.Age <= m.cfg.CacheTTL && !req.NoCache {
		return
	}
	key := e.Lock.Key
	if h := m.holdings.Get(key); h != nil && !h.IsDowngraded() {
		if lock := m.acquirer.StateOf(h); lock.Holder.ExpiresIn > 0 {
			e.Lock, e.Age = lock, 0
			return
		}
	}
	if lock, ok := m.heldCache.Get(key); ok && !req.NoCache {
		e.Lock, e.Age = lock, 0
		return
	}
	if m.st.Ready() != nil {
		return
	}
	asked := m.holders.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(m.ctx, m.cfg.StoreTimeout)
		defer cancel()
		return lanes.SubmitOwn(ctx, m.lanes.Reads, "get", key)
	})
	late := time.NewTimer(holderPatience)
	defer late.Stop()
	select {
	case answer := <-asked:
		if answer.Err == nil {
			e.Lock, e.Age = answer.Val.(store.Lock), 0 //nolint:forcetypeassert // the lane's answer
			m.hideKept(&e.Lock)
		}
	case <-late.C:
	}
}

// begins reads the clock for a call that may wait. Other calls do not need their start time.
func (m *Manager) begins(req *types.Request) (began time.Time) {
	if req.Wait != 0 {
		began = m.cfg.Clock.Now()
	}
	return began
}

func (m *Manager) sinceBegin(began time.Time) time.Duration {
	if began.IsZero() {
		return 0
	}
	return m.cfg.Clock.Now().Sub(began)
}

func (m *Manager) acquired(ctx context.Context, req *types.Request, began time.Time, g *types.Grant, err error) {
	result := attempt.ResultOf(g, err)
	if err == nil {
		m.obs.Acquired(ctx, req.Key, req.Shared, result, g.Waited)
		return
	}
	m.obs.Acquired(ctx, req.Key, req.Shared, result, m.sinceBegin(began))
	m.acquireRefused(ctx, req.Key, req.Traceparent, result, err)
}

// acquiredAll counts the result of a call for several keys, for each key.
func (m *Manager) acquiredAll(ctx context.Context, keys []string, req *types.Request, began time.Time, grants []types.Grant, err error) {
	if err == nil {
		for i := range grants {
			m.obs.Acquired(ctx, grants[i].Key, req.Shared, observe.Granted, grants[i].Waited)
		}
		return
	}
	waited, code := m.sinceBegin(began), types.CodeOf(err)
	for _, key := range keys {
		m.obs.Acquired(ctx, key, req.Shared, code, waited)
	}
	m.acquireRefused(ctx, cmp.Or(KeyOf(err), keys[0]), req.Traceparent, code, err)
}

func (m *Manager) acquireRefused(ctx context.Context, key, traceparent, code string, err error) {
	if held, ok := errors.AsType[*types.HeldError](err); ok {
		m.obs.Denied(ctx, &held.Lock)
	}
	m.obs.Refused(ctx, observe.Refusal{Operation: "acquire", Key: key, Traceparent: traceparent, Code: code, Err: err})
}

// KeyOf returns the key because of which a call for several keys failed, empty if it is not known.
func KeyOf(err error) string {
	if held, ok := errors.AsType[*types.HeldError](err); ok {
		return held.Lock.Key
	}
	if timeout, ok := errors.AsType[*types.TimeoutError](err); ok {
		return timeout.Lock.Key
	}
	if mismatch, ok := errors.AsType[*types.LimitMismatchError](err); ok {
		return mismatch.Key
	}
	return ""
}
