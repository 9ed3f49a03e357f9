package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// minding is a context that notes that somebody waits for its end: from then on a
// connection is watched.
type minding struct {
	context.Context //nolint:containedctx // it is one
	asked           atomic.Bool
}

func (x *minding) Done() <-chan struct{} {
	x.asked.Store(true)
	return x.Context.Done()
}

// Who carries out the own question is watched meanwhile, like everybody who waits.
func TestWhoAsksByItselfIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.sessionOf(false)
		r.lock(s, "the lease is open")
		proceed := r.st.hold("Acquire")
		ctx := &minding{Context: context.Background()}
		a := r.ask(ctx, s, Request{Key: "k"})
		synctest.Wait()
		if !ctx.asked.Load() {
			t.Error("nobody watches who acquires")
		}
		proceed()
		g := a.granted(t)
		proceed = r.st.hold("Release")
		ctx, released := &minding{Context: context.Background()}, make(chan error)
		go func() {
			_, err := r.m.Release(ctx, s, ReleaseRequest{Key: "k", Token: g.Token})
			released <- err
		}()
		synctest.Wait()
		if !ctx.asked.Load() {
			t.Error("nobody watches who releases")
		}
		proceed()
		r.must(<-released)
	})
}

// A call that left while it carried its question out has left, and keeps nothing.
func TestWhoAsksByItselfLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.sessionOf(false)
		proceed := r.st.hold("Acquire")
		ctx, leave := context.WithCancel(context.Background())
		a := r.ask(ctx, s, Request{Key: "k"})
		synctest.Wait()
		leave()
		proceed()
		if <-a.done; !errors.Is(a.err, ErrCallerLeft) {
			t.Errorf("told %v", a.err)
		}
		synctest.Wait()
		if r.stored("k").Held {
			t.Error("what nobody was told of is still held")
		}
	})
}

// Whoever may be told something before the store answers is told at once: a call whose
// session is ended from elsewhere, and one that waits when the sidecar drains.
func TestWhoMayEndEarlyDoesNotAskByItself(t *testing.T) {
	for what, c := range map[string]struct {
		explicit bool
		wait     time.Duration
		end      func(*Manager, *Session)
		told     error
	}{
		"its session is ended": {true, 0, func(_ *Manager, s *Session) { s.End(EndDeleted) }, ErrSessionEnded},
		"the sidecar drains":   {false, time.Hour, func(m *Manager, _ *Session) { m.Drain() }, ErrDraining},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			s := r.sessionOf(c.explicit)
			proceed := r.st.hold("Acquire")
			defer proceed()
			a := r.ask(context.Background(), s, Request{Key: "k", Wait: c.wait})
			synctest.Wait()
			c.end(r.m, s)
			synctest.Wait()
			select {
			case <-a.done:
				if !errors.Is(a.err, c.told) {
					t.Errorf("%s: told %v", what, a.err)
				}
			default:
				t.Errorf("%s, and it is not told", what)
			}
		})
	}
}
