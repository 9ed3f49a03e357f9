package lease

import (
	"testing"
	"testing/synctest"
	"time"
)

// The store listens while sessions hold locks, or something else needs it, and a
// while longer; however often that changes, it is told once.
func TestListensWhileLocksAreHeld(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		listens := func(changes int, on bool) {
			t.Helper()
			synctest.Wait()
			r.st.mu.Lock()
			defer r.st.mu.Unlock()
			if n := len(r.st.listens); n != changes || n > 0 && r.st.listens[n-1].on != on {
				t.Fatalf("told %+v, want %v after %d changes", r.st.listens, on, changes)
			}
		}
		s := r.session()
		for round := range 2 {
			changes := 2 * round
			listens(changes, false)
			for range 100 {
				r.release(s, r.lock(s, "k"))
				time.Sleep(time.Second)
			}
			g := r.lock(s, "k")
			time.Sleep(time.Hour)
			listens(changes+1, true)
			r.m.subscriber.retain()
			r.m.subscriber.retain()
			r.release(s, g)
			r.m.subscriber.release()
			time.Sleep(time.Hour)
			listens(changes+1, true)
			r.m.subscriber.release()
			time.Sleep(lingerTime - time.Second)
			listens(changes+1, true)
			r.release(s, r.lock(s, "k")) // in the last moment
			time.Sleep(lingerTime - time.Second)
			listens(changes+1, true)
			time.Sleep(time.Second + time.Millisecond)
			listens(changes+2, false)
		}
	})
}
