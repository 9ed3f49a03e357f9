package watch

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// expirySlack is how long after its holder's expiry a key is read.
	expirySlack = 10 * time.Millisecond
	// settle is the least time between two reads of which the second confirms the first.
	settle = 100 * time.Millisecond
)

// read is a read under way. pushes is the key's count of pushes when the read began.
type read struct {
	*key
	pushes  uint64
	joining []*Stream
}

// Look reads the keys when they are due, until ctx ends.
func (ws *Watches) Look(ctx context.Context) { run(ctx, ws.lookNow, ws.look) }

func (ws *Watches) look(ctx context.Context) time.Duration {
	reads, next := ws.due()
	if len(reads) == 0 {
		return next
	}
	names := make([]string, len(reads))
	for i, r := range reads {
		names[i] = r.name
	}
	ctx, cancel := context.WithTimeout(ctx, ws.cfg.Timeout)
	defer cancel()
	locks, err := ws.cfg.Get(ctx, names)
	if err != nil {
		ws.cfg.Log.Debug("watched keys not read, trying again", "keys", len(reads), "error", err)
	}
	for i, r := range reads {
		if err != nil {
			ws.fail(r.joining, err)
		}
		ws.mu.Lock()
		if err != nil {
			ws.lookIn(r.key, ws.cfg.Retry())
		} else {
			ws.found(r, locks[i])
		}
		ws.mu.Unlock()
	}
	return 0
}

// due returns the keys that are due now or soon. Without such a key, next is the time until one is due.
func (ws *Watches) due() (reads []read, next time.Duration) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now, every := ws.cfg.Clock.Now(), ws.cfg.Every()
	next = time.Hour
	var soon []*key
	for _, k := range ws.keys {
		if len(k.streams) == 0 {
			k.lookAt = time.Time{} // else a time that has passed would keep lookIn from waking Look for the next stream
			continue
		}
		if wait := k.lookAt.Sub(now); !k.lookAt.IsZero() {
			next = min(next, wait)
			if wait <= every/2 {
				soon = append(soon, k)
			}
		}
	}
	if next > 0 {
		return nil, next
	}
	for _, k := range soon[:min(len(soon), ws.cfg.BatchMax)] {
		r := read{key: k, pushes: k.pushes}
		if k.watched {
			r.joining = k.waiting()
		}
		reads = append(reads, r)
		k.lookAt = now.Add(every)
	}
	return reads, 0
}

// found processes the result of a read. The caller holds ws.mu.
func (ws *Watches) found(r read, lock store.Lock) {
	if lock.Held {
		ends := lock.Holder.ExpiresIn
		if lock.Shared {
			ends = lock.NextEnd
		}
		ws.lookIn(r.key, max(ends+expirySlack, settle))
	}
	if r.announced(&lock) {
		r.tellNew(&lock)
	}
	if yes, again := r.mayTell(lock, ws.cfg.Clock.Now()); yes {
		r.tell(lock)
	} else if again > 0 {
		ws.lookIn(r.key, again)
	}
	for _, st := range r.joining {
		if !st.closed && st.join(lock, r.pushes != r.key.pushes) {
			ws.lookIn(r.key, 0)
		}
	}
}

// lookIn makes a key be read after the given time at the latest. The caller holds ws.mu.
func (ws *Watches) lookIn(k *key, wait time.Duration) {
	at := ws.cfg.Clock.Now().Add(wait)
	if k.lookAt.IsZero() || at.Before(k.lookAt) {
		k.lookAt = at
		wake(ws.lookNow)
	}
}
