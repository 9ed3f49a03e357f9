package key

import (
	"bytes"

	"github.com/locksidecar/locksidecar/store"
)

// watcher is an instance that receives the key's events until its lease is dead.
type watcher struct {
	by    *Instance
	lease *Lease
}

// Watch sends the key's events to the instance, until the lease is dead. It replaces an earlier watch. A kept key is recalled, because
// what its instance does with it makes no events.
func (o *Op) Watch(r *Row, lease *Lease) {
	if r.watchers == nil {
		r.watchers = map[string]watcher{}
	}
	r.watchers[o.By.Name] = watcher{o.By, lease}
	o.recall(r)
}

// Unwatch ends the instance's watch, or with a lease only one under it.
func (o *Op) Unwatch(r *Row, under *Lease) {
	if under == nil || r.watchers[o.By.Name].lease == under {
		delete(r.watchers, o.By.Name)
		r.tidy()
	}
}

// event sends an event of the grant with this token to the key's watchers.
func (o *Op) event(r *Row, token int64, e store.Event) {
	for _, w := range r.watchers {
		told := e
		told.Key, told.Token = r.Key, token
		o.News = append(o.News, News{w.by, store.News{Event: &told}})
	}
}

func (o *Op) released(r *Row, h *holder, outcome store.ReleaseOutcome, result []byte) {
	if r.watchers != nil {
		o.event(r, h.Token, store.Event{Kind: store.EventReleased, Outcome: outcome, Result: bytes.Clone(result)})
	}
}
