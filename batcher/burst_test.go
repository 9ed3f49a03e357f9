package batcher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The memory of a burst is let go when the burst is over, and not only when the lane is idle.
func TestABurstIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := make(chan struct{})
		flush := func(_ context.Context, items []string) ([]string, error) {
			<-turn
			return items, nil
		}
		const most, burst = 10, 1000
		l := New(Config{Max: most, Timeout: time.Hour, PerKey: most}, key, flush, nil)
		var a answers
		submitAll(t, l, &a, "a")
		synctest.Wait()
		for range burst + 5 {
			submitAll(t, l, &a, "b")
		}
		// There is always something that waits.
		for range burst/most + 20 {
			submitAll(t, l, &a, "c")
			turn <- struct{}{}
			synctest.Wait()
		}
		for range 2 { // two arrays take turns
			submitAll(t, l, &a, "c")
			l.mu.Lock()
			if room := cap(l.queue); len(l.queue) != 1 || room > 2*most {
				t.Errorf("%d waits, and there is room for %d, where %d go together", len(l.queue), room, most)
			}
			l.mu.Unlock()
			turn <- struct{}{}
			synctest.Wait()
		}
		close(turn)
		stop(l)
	})
}
