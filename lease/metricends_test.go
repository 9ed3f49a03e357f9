package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// A grant that a repeat finds again counts as one hand-off.
func TestARepeatIsNoHandOff(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.eitherSession()
		g := r.lock(s, "k")
		req := types.Request{Key: "k", Bind: types.BindTTL, TTL: time.Minute, Wait: time.Minute, RequestID: uuid.New()}
		a := r.ask(context.Background(), nil, req)
		synctest.Wait()
		_, err := r.m.Release(context.Background(), s, types.ReleaseRequest{
			Key: g.Key, Token: g.Token, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		})
		r.must(err)
		first := a.granted(t)
		time.Sleep(20 * time.Second)
		again, err := r.m.Acquire(context.Background(), nil, req)
		r.must(err)
		if again.Token != first.Token {
			t.Fatal("another grant")
		}
		if d := r.counts.delays(); len(d) != 1 {
			t.Errorf("hand-offs: %v", d)
		}
	})
}

// lateWaits counts a wait after a delay in which the test acts.
type lateWaits struct {
	*counts
	lose func()
}

func (l *lateWaits) Waits(key string, change int) {
	if change > 0 && l.lose != nil {
		done := make(chan struct{})
		go func() { defer close(done); l.lose() }()
		select {
		case <-done:
		case <-time.After(50 * time.Millisecond):
		}
	}
	l.counts.Waits(key, change)
}

// The loss of a lease does not subtract an attempt that is not counted yet.
func TestWaitsAreNeverNegative(t *testing.T) {
	late := &lateWaits{counts: newCounts(t)}
	r := newRig(t, with(func(c *types.Config) { c.Metrics = late }))
	s, o := r.eitherSession(), r.eitherSession()
	r.lock(s, "k")
	late.lose = func() {
		late.lose = nil
		for _, l := range r.m.leases.All() {
			r.m.leases.Lose(l, types.LostExpired)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	<-r.ask(ctx, o, types.Request{Key: "k", Wait: 300 * time.Millisecond, NoCache: true}).done
	r.m.Stop()
}
