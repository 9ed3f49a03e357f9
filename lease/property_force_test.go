package lease

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// loseLease loses a lease before its deadline, so the store still has it.
func (w *world) loseLease() {
	m := w.side[w.drawSide()].m
	for _, l := range m.leases.All() {
		if l.Alive(clock.Read(m.cfg.Clock)) {
			m.leases.Lose(l, types.LostExpired)
		}
	}
}

// force breaks a lock. A bind:ttl lock is then no longer its app's, although nobody notifies the app.
func (w *world) force() {
	r, key := w.side[w.drawSide()], w.drawKey()
	lock := r.stored(key)
	w.mu.Lock()
	w.notef("%s: breaks %q %d", r.m.cfg.Instance, key, lock.Token)
	if !lock.Holder.Renewed {
		w.released[lock.Token] = true
		for _, c := range w.held {
			c.over = c.over || c.Key == key && c.Token == lock.Token
		}
	}
	w.mu.Unlock()
	w.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.m.Break(ctx, lock, 0)
	})
}
