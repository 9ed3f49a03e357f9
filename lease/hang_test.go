package lease

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// callsOfStore are calls that need the store. s has held, and nobody has free.
func callsOfStore(r *rig, s *holdings.Session, held, ttl types.Grant) map[string]func(context.Context) error {
	acquire := func(s *holdings.Session, req types.Request) func(context.Context) error {
		return func(ctx context.Context) error {
			req.Key, req.NoCache = "free", true
			_, err := r.m.Acquire(ctx, s, req)
			return err
		}
	}
	several := func(s *holdings.Session, req types.Request) func(context.Context) error {
		return func(ctx context.Context) error {
			req.NoCache = true
			_, err := r.m.AcquireAll(ctx, s, []string{"free", "free too"}, req)
			return err
		}
	}
	calls := map[string]func(context.Context) error{
		"get": func(ctx context.Context) error { _, err := r.m.Get(ctx, s, "free", true); return err },
		"list": func(ctx context.Context) error {
			_, err := r.m.List(ctx, s, types.ListRequest{Scope: types.ScopeAll, Limit: 10})
			return err
		},
		"stop": func(ctx context.Context) error { return r.m.AskToStop(ctx, "held elsewhere", 0, nil) },
		"events": func(ctx context.Context) error {
			_, end, err := r.m.Watch(ctx, s, "free", func(Event) {})
			if err == nil {
				end()
			}
			return err
		},
		"amend bind:ttl": func(ctx context.Context) error {
			_, err := r.m.Amend(ctx, nil, types.AmendRequest{Key: ttl.Key, Token: ttl.Token, TTL: time.Hour})
			return err
		},
		"release bind:ttl": func(ctx context.Context) error {
			_, err := r.m.Release(ctx, nil, types.ReleaseRequest{Key: ttl.Key, Token: ttl.Token})
			return err
		},
		"release by request id": func(ctx context.Context) error {
			_, err := r.m.Release(ctx, s, types.ReleaseRequest{Key: "free", RequestID: uuid.New()})
			return err
		},
		"release": func(ctx context.Context) error {
			_, err := r.m.Release(ctx, s, types.ReleaseRequest{Key: held.Key, Token: held.Token})
			return err
		},
	}
	for name, req := range map[string]types.Request{
		"":                      {},
		" of another lease":     {TTL: time.Minute},
		", waiting":             {Wait: time.Minute},
		", waiting, of another": {Wait: types.WaitForever, TTL: time.Minute},
		" by a request id":      {TTL: time.Minute, RequestID: uuid.New()},
	} {
		calls["acquire"+name] = acquire(s, req)
		calls["several"+name] = several(s, req)
		req.Bind, req.TTL = types.BindTTL, time.Minute
		calls["acquire bind:ttl"+name] = acquire(nil, req)
		calls["several bind:ttl"+name] = several(nil, req)
	}
	return calls
}

func callsThatHang(t *testing.T) (names []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		names = slices.Sorted(maps.Keys(callsOfStore(newRig(t), nil, types.Grant{}, types.Grant{})))
	})
	return names
}

// hanging returns a call to a store that hangs, of a session that holds "kept". The store does not hang with renewals, so the
// session outlives it. It is not inline, because such a store does not hang.
func hanging(t *testing.T, explicit bool, name string) (*rig, *holdings.Session, func(context.Context) error) {
	t.Helper()
	r := newRig(t)
	s := r.sessionOf(explicit)
	r.lock(s, "kept")
	r.lockTTL("held elsewhere", time.Hour)
	call := callsOfStore(r, s, r.lock(s, "held"), r.lockTTL("ttl", time.Hour))[name]
	for _, op := range everyOp {
		if op != "Renew" {
			r.st.set(op, fault{gate: make(chan struct{})})
		}
	}
	return r, s, call
}

// A call that a hanging store does not answer fails because of the store, not because of its caller or its session.
// The session goes on.
// Proves: promise 9
func TestAStoreThatHangsIsUnavailable(t *testing.T) {
	for _, explicit := range []bool{false, true} {
		for _, name := range callsThatHang(t) {
			synctest.Test(t, func(t *testing.T) {
				r, s, call := hanging(t, explicit, name)
				err := call(t.Context())
				if !store.Unavailable(err) || errors.Is(err, types.ErrCallerLeft) || errors.Is(err, types.ErrSessionEnded) {
					t.Errorf("%s: error %v", name, err)
				}
				if code := types.CodeOf(err); code != observe.Unavailable {
					t.Errorf("%s is counted as %s", name, code)
				}
				r.st.lift(everyOp...)
				if v, err := r.m.Get(t.Context(), s, "kept", false); err != nil || !v.Mine {
					t.Errorf("%s: the session has ended, or lost its lock: %+v, %v", name, v, err)
				}
			})
		}
	}
}

// A call that does not wait for a lock is answered within the patience, counted from the call: behind statements of other calls, with a
// lease to open, and if each statement takes nearly its whole time.
// Proves: promise 9
func TestCallsAreAnsweredInTime(t *testing.T) {
	for _, explicit := range []bool{false, true} {
		for name, f := range map[string]fault{"hangs": {gate: make(chan struct{})}, "is slow": {before: 900 * time.Millisecond}} {
			for _, call := range callsThatHang(t) {
				if strings.Contains(call, "waiting") {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					short := with(func(c *types.Config) { c.StoreTimeout = time.Second })
					r := newRig(t, short)
					s := r.sessionOf(explicit)
					r.lockTTL("held elsewhere", time.Hour)
					theirs := callsOfStore(r, r.eitherSession(), types.Grant{Key: "no", Token: 1}, types.Grant{Key: "no", Token: 1})
					ours := callsOfStore(r, s, r.lock(s, "held"), r.lockTTL("ttl", time.Hour))[call]
					for _, op := range everyOp {
						if f.gate != nil {
							f.gate = make(chan struct{})
						}
						if op != "Renew" {
							r.st.set(op, f)
						}
					}
					for name, other := range theirs {
						if !strings.Contains(name, "waiting") {
							go func() { _ = other(t.Context()) }()
						}
					}
					time.Sleep(10 * time.Millisecond)
					began := time.Now()
					err := ours(t.Context())
					if after := time.Since(began); after > 1100*time.Millisecond {
						t.Errorf("%s, explicit %t, the store %s: answered after %s: %v", call, explicit, name, after, err)
					}
					if errors.Is(err, types.ErrCallerLeft) || errors.Is(err, types.ErrSessionEnded) {
						t.Errorf("%s, the store %s: %v", call, name, err)
					}
					r.st.lift(everyOp...)
				})
			}
		}
	}
}

// A call whose caller leaves while the store hangs says so. Releases in a session, and those by a request id, await their
// statement, because it must be known what they did.
// Proves: promise 9
func TestACallerThatLeavesAHangingStore(t *testing.T) {
	for _, name := range callsThatHang(t) {
		if name == "release" || name == "release by request id" {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			r, _, call := hanging(t, false, name)
			ctx, leave := context.WithTimeout(t.Context(), time.Second)
			defer leave()
			if err := call(ctx); !errors.Is(err, types.ErrCallerLeft) {
				t.Errorf("%s: error %v", name, err)
			}
			r.st.lift(everyOp...)
		})
	}
}
