package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/heartbeat"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// The store listens while a lease is open, and for a while after. Single locks do not change that.
func TestListensWhileLocksAreHeld(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		listens := func(changes int, on bool) {
			t.Helper()
			synctest.Wait()
			r.st.mu.Lock()
			defer r.st.mu.Unlock()
			if n := len(r.st.listens); n != changes || n > 0 && r.st.listens[n-1].on != on {
				t.Fatalf("listens %+v, want %v after %d changes", r.st.listens, on, changes)
			}
		}
		s := r.eitherSession()
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
			r.release(s, g)
			time.Sleep(r.m.cfg.RenewInterval / 2)
			listens(changes+1, true)
			r.release(s, r.lock(s, "k")) // while the lease is still open
			time.Sleep(r.m.cfg.RenewInterval / 2)
			listens(changes+1, true)
			time.Sleep(heartbeat.Linger)
			listens(changes+1, true)
			time.Sleep(3 * r.m.cfg.RenewInterval)
			listens(changes+2, false)
		}
	})
}

// Short locks do not start and stop the listening.
func TestListeningDoesNotFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		s := r.eitherSession()
		for range 50 {
			g, err := r.m.Acquire(context.Background(), s, types.Request{Key: "k", NoCache: true, MinHold: time.Millisecond})
			r.must(err)
			time.Sleep(10 * time.Millisecond)
			r.release(s, g)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if n := len(r.st.listens); n != 1 {
			t.Errorf("listening changed %d times", n)
		}
	})
}
