package background

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testing/clocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func inBubble(t *testing.T, test func(t *testing.T, r *Runner, cancel context.CancelFunc)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		test(t, New(ctx, clocktest.Bubble{}), cancel)
	})
}

func TestJoinWaitsAndRefuses(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Runner, _ context.CancelFunc) {
		done := false
		if !r.Spawn(func() { time.Sleep(time.Minute); done = true }) {
			t.Fatal("refused")
		}
		r.Join()
		if !done || r.Spawn(func() { t.Error("run after Join") }) {
			t.Errorf("done: %v", done)
		}
	})
}

func TestAfterRunsOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Runner, _ context.CancelFunc) {
		ran := map[string]int{}
		r.After(time.Second, func() { ran["soon"]++ })
		r.After(time.Hour, func() { ran["late"]++ })
		time.Sleep(time.Minute)
		synctest.Wait()
		if ran["soon"] != 1 || ran["late"] != 0 {
			t.Errorf("after a minute: %v", ran)
		}
		r.Hurry()
		if ran["late"] != 1 || r.After(0, func() { t.Error("run after Hurry") }) {
			t.Errorf("after Hurry: %v", ran)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if ran["soon"] != 1 || ran["late"] != 1 {
			t.Errorf("in the end: %v", ran)
		}
	})
}

func TestPersist(t *testing.T) {
	for name, c := range map[string]struct {
		succeedsAt int // the try; 0: none does
		limit      time.Duration
		cancelled  bool
		least      int
	}{
		"until it succeeds":       {succeedsAt: 5, limit: time.Hour, least: 5},
		"until the time is over":  {limit: time.Minute, least: 15},
		"until the runner's stop": {limit: time.Hour, cancelled: true, least: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, r *Runner, cancel context.CancelFunc) {
				tries, settled := 0, 0
				began := time.Now()
				r.Persist(func(ctx context.Context) bool {
					if limit, ok := ctx.Deadline(); !ok || time.Until(limit) != time.Second {
						t.Errorf("a try may take until %v", limit)
					}
					tries++
					return tries == c.succeedsAt
				}, time.Second, c.limit, func() { settled++ })
				synctest.Wait()
				if c.cancelled {
					cancel()
				}
				r.Join()
				took := time.Since(began)
				if tries < c.least || settled != 1 || c.succeedsAt > 0 && tries > c.least || took > c.limit+pauseMax || c.cancelled && took > 0 {
					t.Errorf("%d tries, settled %d times after %s", tries, settled, took)
				}
			})
		})
	}
}

func TestPersistAfterJoin(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Runner, _ context.CancelFunc) {
		r.Join()
		settled := false
		r.Persist(func(context.Context) bool { t.Error("tried"); return true }, time.Second, time.Hour, func() { settled = true })
		if !settled {
			t.Error("not settled")
		}
	})
}
