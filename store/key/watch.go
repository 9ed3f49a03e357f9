package key

import (
	"bytes"
	"slices"

	"github.com/locksidecar/locksidecar/store"
)

// watcher is an instance that receives the key's events until its lease is dead.
type watcher struct {
	by    *Instance
	lease *Lease
}

// Watch sends the key's events to the instance, until the lease is dead. It replaces an earlier watch.
func (o *Op) Watch(r *Row, lease *Lease) {
	o.Unwatch(r, nil)
	r.watchers = append(r.watchers, watcher{o.By, lease})
}

// Unwatch ends the instance's watch, or with a lease only one under it.
func (o *Op) Unwatch(r *Row, under *Lease) {
	r.watchers = slices.DeleteFunc(r.watchers, func(w watcher) bool {
		return w.by.is(o.By) && (under == nil || w.lease == under)
	})
	r.tidy()
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
