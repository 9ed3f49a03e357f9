// Proves: rule lone call

package lease

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// A call may carry out its own statement. If its caller leaves meanwhile, the call keeps nothing.
func TestCallerLeavesDuringItsOwnStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.connectionSession()
		proceed := r.st.hold("Acquire")
		ctx, leave := context.WithCancel(context.Background())
		a := r.ask(ctx, s, types.Request{Key: "k"})
		synctest.Wait()
		leave()
		proceed()
		if <-a.done; !errors.Is(a.err, types.ErrCallerLeft) {
			t.Errorf("error %v", a.err)
		}
		synctest.Wait()
		if r.stored("k").Held {
			t.Error("a lock that was not delivered is still held")
		}
	})
}

// A connection that closes cancels its call and then ends its session. The call fails because its caller left, whichever of
// the two it sees first.
// Proves: trap unseen disconnect
func TestCallerLeftAndItsSessionEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.connectionSession()
		ctx, leave := context.WithCancel(context.Background())
		leave()
		s.End(types.EndDropped)
		req := types.Request{Key: "k", Wait: types.WaitForever}
		if _, err := r.m.Acquire(ctx, s, req); !errors.Is(err, types.ErrCallerLeft) || types.CodeOf(err) != types.CodeOf(types.ErrCallerLeft) {
			t.Errorf("one key: %v", err)
		}
		if _, err := r.m.AcquireAll(ctx, s, []string{"k", "l"}, req); !errors.Is(err, types.ErrCallerLeft) {
			t.Errorf("several keys: %v", err)
		}
	})
}

// A call ends before the store's answer if its session ends or the sidecar drains.
func TestCallEndsBeforeTheAnswer(t *testing.T) {
	for what, c := range map[string]struct {
		explicit bool
		wait     time.Duration
		end      func(*Manager, *holdings.Session)
		told     error
	}{
		"its session is ended": {true, 0, func(_ *Manager, s *holdings.Session) { s.End(types.EndDeleted) }, types.ErrSessionEnded},
		"the sidecar drains":   {false, time.Hour, func(m *Manager, _ *holdings.Session) { m.Drain() }, types.ErrDraining},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			s := r.sessionOf(c.explicit)
			proceed := r.st.hold("Acquire")
			defer proceed()
			a := r.ask(context.Background(), s, types.Request{Key: "k", Wait: c.wait})
			synctest.Wait()
			c.end(r.m, s)
			synctest.Wait()
			select {
			case <-a.done:
				if !errors.Is(a.err, c.told) {
					t.Errorf("%s: error %v", what, a.err)
				}
			default:
				t.Errorf("%s, and the call does not end", what)
			}
		})
	}
}
