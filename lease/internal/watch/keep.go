package watch

import (
	"context"
	"time"
)

// Keep makes the store watch exactly the keys that have streams, until ctx ends.
func (ws *Watches) Keep(ctx context.Context) { run(ctx, ws.keepNow, ws.keep) }

func (ws *Watches) keep(ctx context.Context) (again time.Duration) {
	gone, missing, waiting := ws.plan()
	if len(gone) > 0 {
		ws.unwatch(ctx, gone)
		return 0
	}
	if len(missing) == 0 {
		return time.Hour
	}
	if err := ws.watch(ctx, missing); err != nil {
		ws.fail(waiting, err)
		ws.cfg.Log.Debug("keys not watched, trying again", "error", err)
		return ws.cfg.Retry()
	}
	return 0
}

// plan returns the watched keys without streams, and the keys not watched yet, with their waiting streams.
// A stream that comes while the store is asked is not among them, so it does not fail if the store fails.
func (ws *Watches) plan() (gone []string, missing []*key, waiting []*Stream) {
	lost := ws.lease != nil && !ws.lease.Alive() // the store drops watches under a lost lease
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for name, k := range ws.keys {
		k.watched = k.watched && !lost
		switch {
		case len(k.streams) == 0 && !k.watched:
			delete(ws.keys, name)
		case len(k.streams) == 0 && len(gone) < ws.cfg.BatchMax:
			delete(ws.keys, name)
			gone = append(gone, name)
		case !k.watched && len(missing) < ws.cfg.BatchMax:
			missing = append(missing, k)
			waiting = append(waiting, k.waiting()...)
		}
	}
	if lost || ws.lease != nil && len(ws.keys) == 0 {
		ws.lease.Unpin()
		ws.lease = nil
	}
	return gone, missing, waiting
}

// watch makes the store watch keys. The keys are read then, because earlier events may be missed.
func (ws *Watches) watch(ctx context.Context, keys []*key) (err error) {
	if ws.lease == nil {
		if ws.lease, err = ws.cfg.Pin(ctx); err != nil {
			return err
		}
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	ctx, cancel := context.WithTimeout(ctx, ws.cfg.Timeout)
	defer cancel()
	if err := ws.cfg.Store.Watch(ctx, names, ws.lease.ID()); err != nil {
		return err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, k := range keys {
		k.watched = true
		ws.lookIn(k, 0)
	}
	return nil
}

// unwatch ends watches. If the store fails, they end with the lease.
func (ws *Watches) unwatch(ctx context.Context, names []string) {
	ctx, cancel := context.WithTimeout(ctx, ws.cfg.Timeout)
	defer cancel()
	if err := ws.cfg.Store.Unwatch(ctx, names); err != nil {
		ws.cfg.Log.Debug("could not stop watching keys", "keys", len(names), "error", err)
	}
}
