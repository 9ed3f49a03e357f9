package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/hearing"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// listened checks what the store was told about listening.
func (r *rig) listened(want ...bool) {
	r.t.Helper()
	synctest.Wait()
	r.st.mu.Lock()
	defer r.st.mu.Unlock()
	ok := len(r.st.listens) == len(want)
	for i := range min(len(want), len(r.st.listens)) {
		ok = ok && r.st.listens[i].on == want[i]
	}
	if !ok {
		r.t.Fatalf("got %+v, want %v", r.st.listens, want)
	}
}

// A sidecar whose apps hold locks, and could not be told of a request to stop at once, needs no listener.
// Proves: promise 17
func TestQuietHoldersDoNotListen(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.connectionSession()
		for range 100 {
			r.release(s, r.lock(s, "k"))
			time.Sleep(time.Second)
		}
		r.lock(s, "k")
		r.lockTTL("ttl", 2*time.Hour)
		time.Sleep(time.Hour)
		r.listened()
	})
}

// If renewals are rare, requests to stop would come late, and a crash of the server would be noticed late, so the store listens for every session's locks.
// Proves: promise 4, promise 17
func TestHoldersWithRareRenewalsListen(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt, func(c *types.Config, _ *store.Traits) { c.TTL, c.RenewInterval = time.Hour, 20*time.Minute })
		s := r.connectionSession()
		r.release(s, r.lock(s, "k"))
		r.listened(true)
		time.Sleep(hearing.Linger / 2)
		r.listened(true)
	})
}

// The store listens while an explicit session holds a lock, because its app is told of requests to stop. Short locks do not matter.
// Proves: promise 17
func TestListensForRequestsToStop(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		s := r.explicitSession()
		for range 100 {
			r.release(s, r.lock(s, "k"))
			time.Sleep(hearing.Patience * 7 / 10) // so no lock is held a Patience after another one
		}
		r.listened()
		g := r.lock(s, "k")
		time.Sleep(2 * hearing.Patience)
		r.listened(true)
		time.Sleep(time.Hour)
		r.listened(true)
		r.release(s, g)
		time.Sleep(3 * hearing.Linger)
		r.listened(true, false)
		// However a lock ends, it is counted as ended.
		for _, end := range []func(){
			func() { s.End(types.EndDropped) },
			func() { r.revokeLeases(); time.Sleep(2 * r.m.cfg.RenewInterval) },
		} {
			before := make([]bool, 0, 8)
			for _, l := range r.st.listens {
				before = append(before, l.on)
			}
			r.lock(s, "k")
			time.Sleep(2 * hearing.Patience)
			r.listened(append(before, true)...)
			end()
			time.Sleep(3 * hearing.Linger)
			r.listened(append(before, true, false)...)
			s = r.explicitSession()
		}
	})
}

// A request to stop that is sent before the store listens is found when it does.
// Proves: promise 17, trap notifications
func TestAStopBeforeTheStoreListens(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		other := r.another()
		s := r.explicitSession()
		g := r.lock(s, "k")
		r.st.mu.Lock()
		r.st.dropNews = true // the store does not listen yet
		r.st.mu.Unlock()
		r.must(other.m.AskToStop(context.Background(), "k", g.Token, nil))
		time.Sleep(2 * hearing.Patience)
		r.listened(true)
		r.m.News(store.EveryWait) // as the store reports when it listens
		synctest.Wait()
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.told) != 1 || r.told[0].Token != g.Token {
			t.Errorf("told %+v", r.told)
		}
	})
}

// The store listens while a key is watched, from before the watch.
// Proves: trap notifications
func TestListensWhileAKeyIsWatched(t *testing.T) {
	bubble(t, func(t *testing.T, opt option) {
		r := newRig(t, opt)
		release := r.st.hold("Watch")
		go func() {
			time.Sleep(time.Millisecond)
			r.listened(true)
			release()
		}()
		_, stop, err := r.m.Watch(context.Background(), nil, "k", func(Event) {})
		r.must(err)
		time.Sleep(time.Hour)
		r.listened(true)
		stop()
		time.Sleep(3 * hearing.Linger)
		r.listened(true, false)
	})
}
