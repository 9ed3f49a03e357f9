package lease

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/store"
)

// watches has the keys that are watched here. One goroutine keeps the store's
// watches in step with them: one for each key, however many streams it has, under
// one lease, and under a fresh one when that is lost. Another reads the keys, for
// what the store tells is best effort: just after a holder's expiry, as often as
// leases are renewed, when the store says that something may have been missed, and
// where its news does not come by itself for now, every poll interval.
type watches struct {
	m      *Manager
	engine store.Watcher // nil if the engine cannot tell of events

	mu      sync.Mutex
	keys    map[string]*watched
	streams int

	// lease and inStore are of the goroutine that keeps the store in step.
	lease   *lease
	inStore map[string]*watched

	// readAll is when all keys are read next, idle: there were none. They are of the
	// goroutine that reads.
	readAll time.Time
	idle    bool
	// Each wakes one of the goroutines. everything: all keys are to be read now.
	syncWake, pollWake, pollAllWake chan struct{}
}

func newWatches(m *Manager) *watches {
	engine, _ := m.st.(store.Watcher)
	return &watches{
		m: m, engine: engine, keys: make(map[string]*watched), inStore: make(map[string]*watched),
		syncWake: make(chan struct{}, 1), pollWake: make(chan struct{}, 1), pollAllWake: make(chan struct{}, 1),
	}
}

// changed wakes a goroutine.
func (ws *watches) changed(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// add makes a stream one of those that watch a key. remove must follow.
func (ws *watches) add(key string, st *stream) (*watched, error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if limit := ws.m.cfg.MaxWaiters; ws.streams >= limit {
		return nil, &LimitError{What: "watching calls", Setting: "LOCKSIDECAR_MAX_WAITERS", Limit: limit}
	}
	w := ws.keys[key]
	if w == nil {
		if len(ws.keys) >= maxWatchedKeys {
			return nil, &LimitError{What: "watched keys", Limit: maxWatchedKeys}
		}
		w = &watched{m: ws.m, key: key, watched: make(chan struct{}), streams: make(map[*stream]struct{})}
		ws.keys[key] = w
		ws.changed(ws.syncWake)
		ws.changed(ws.pollWake)
	}
	ws.streams++
	w.mu.Lock()
	defer w.mu.Unlock()
	w.streams[st] = struct{}{}
	return w, nil
}

// remove ends a stream, and with the last one the watch of its key.
func (ws *watches) remove(w *watched, st *stream) {
	if !st.stop() {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.streams--
	w.mu.Lock()
	delete(w.streams, st)
	last := len(w.streams) == 0
	w.mu.Unlock()
	if last && ws.keys[w.key] == w {
		delete(ws.keys, w.key)
		ws.changed(ws.syncWake)
	}
}

// receive brings an event to its key.
func (ws *watches) receive(e store.Event) {
	ws.mu.Lock()
	w := ws.keys[e.Key]
	ws.mu.Unlock()
	if w != nil {
		w.receive(e)
	}
}

// sync keeps the watches of the store in step, until ctx ends.
func (ws *watches) sync(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(ws.syncOnce(ctx))
		select {
		case <-timer.C:
		case <-ws.syncWake:
		case <-ctx.Done():
			ws.fail(ws.missing(), batcher.ErrStopped)
			return
		}
	}
}

// syncOnce watches and unwatches what has changed. It returns how long until it has to
// try again.
func (ws *watches) syncOnce(ctx context.Context) time.Duration {
	if l := ws.lease; l != nil && !l.alive(clock.Read(ws.m.clk)) { // the store drops its watches
		ws.drop()
		ws.m.lose(l, l.lossReason()) // perhaps before the renewer does
	}
	ws.unwatch(ctx)
	missing := ws.missing()
	if len(missing) == 0 {
		if len(ws.inStore) == 0 {
			ws.drop()
		}
		return time.Hour
	}
	err := ws.pin(ctx)
	for part := range slices.Chunk(missing, ws.m.cfg.BatchMax) {
		if err == nil {
			err = ws.watch(ctx, part)
		}
		if err != nil {
			ws.fail(part, err)
		}
	}
	if err != nil {
		ws.m.log.Debug("keys not watched, trying again", "error", err)
		return jittered(ws.m.cfg.PollInterval)
	}
	return time.Hour
}

// missing are the keys that the store does not watch.
func (ws *watches) missing() (missing []*watched) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for key, w := range ws.keys {
		if ws.inStore[key] == nil {
			missing = append(missing, w)
		} else if ws.inStore[key] != w { // the last stream went, another came
			ws.inStore[key] = w
			close(w.watched)
		}
	}
	return missing
}

// pin makes sure of a lease to watch under.
func (ws *watches) pin(ctx context.Context) error {
	if ws.lease != nil {
		return nil
	}
	l := ws.m.pin(ws.m.ctx, ws.m.cfg.TTL)
	var err error
	select {
	case <-l.opened:
		err = l.openErr
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		l.unpin()
		return err
	}
	ws.lease = l
	return nil
}

// drop lets go of the lease, and of what was watched under it.
func (ws *watches) drop() {
	if ws.lease != nil {
		ws.lease.unpin()
		ws.lease = nil
	}
	clear(ws.inStore)
}

func (ws *watches) watch(ctx context.Context, part []*watched) error {
	ctx, cancel := context.WithTimeout(ctx, ws.m.cfg.StoreTimeout)
	defer cancel()
	if err := ws.engine.Watch(ctx, keysOf(part), ws.lease.id); err != nil {
		return err
	}
	for _, w := range part {
		ws.inStore[w.key] = w
		select {
		case <-w.watched: // again: something may have been missed
			w.check(0)
		default:
			close(w.watched)
		}
	}
	return nil
}

// unwatch ends the watches that nobody wants. One that fails ends with the lease.
func (ws *watches) unwatch(ctx context.Context) {
	ws.mu.Lock()
	var gone []string
	for key := range ws.inStore {
		if ws.keys[key] == nil {
			gone = append(gone, key)
		}
	}
	ws.mu.Unlock()
	for part := range slices.Chunk(gone, ws.m.cfg.BatchMax) {
		limited, cancel := context.WithTimeout(ctx, ws.m.cfg.StoreTimeout)
		if err := ws.engine.Unwatch(limited, part); err != nil {
			ws.m.log.Debug("keys not unwatched", "keys", len(part), "error", err)
		}
		cancel()
		for _, key := range part {
			delete(ws.inStore, key)
		}
	}
}

// fail ends watches that have not begun. The others go on by what is read.
func (ws *watches) fail(part []*watched, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, w := range part {
		select {
		case <-w.watched:
		default:
			w.err = refusal(context.Background(), err)
			close(w.watched)
			if ws.keys[w.key] == w { // the last stream may have left, and another one come
				delete(ws.keys, w.key)
			}
		}
	}
}

func keysOf(all []*watched) []string {
	keys := make([]string, len(all))
	for i, w := range all {
		keys[i] = w.key
	}
	return keys
}

// poll reads the keys when they are due, until ctx ends.
func (ws *watches) poll(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		due, next := ws.due()
		if len(due) > 0 {
			for part := range slices.Chunk(due, ws.m.cfg.BatchMax) {
				ws.read(ctx, part)
			}
			continue
		}
		timer.Reset(next)
		select {
		case <-timer.C:
		case <-ws.pollWake:
		case <-ws.pollAllWake:
			ws.readAll = time.Time{}
		case <-ctx.Done():
		}
	}
}

// toRead is a key to be read, of which so many changes were heard before.
type toRead struct {
	*watched
	changes uint64
}

// due returns the keys to be read now, or how long none is.
func (ws *watches) due() (due []toRead, next time.Duration) {
	ws.mu.Lock()
	all := slices.Collect(maps.Values(ws.keys))
	ws.mu.Unlock()
	ws.idle = ws.idle || len(all) == 0
	if len(all) == 0 {
		return nil, time.Hour
	}
	now := ws.m.clk.Now()
	every := jittered(ws.m.queue.every())
	if ws.idle || ws.readAll.After(now.Add(every)) { // perhaps it has become shorter
		ws.idle = false
		ws.readAll = now.Add(every)
	}
	everything := !ws.readAll.After(now)
	if everything {
		ws.readAll = now.Add(every)
	}
	next = ws.readAll.Sub(now)
	for _, w := range all {
		w.mu.Lock()
		wait := time.Hour
		if !w.checkAt.IsZero() {
			wait = w.checkAt.Sub(now)
		}
		if everything || wait <= 0 {
			due = append(due, toRead{w, w.changes})
			w.checkAt = time.Time{}
		}
		w.mu.Unlock()
		next = min(next, wait)
	}
	return due, max(next, 0)
}

// read reads some keys with one question.
func (ws *watches) read(ctx context.Context, part []toRead) {
	keys := make([]string, len(part))
	for i, w := range part {
		keys[i] = w.key
	}
	ctx, cancel := context.WithTimeout(ctx, ws.m.cfg.StoreTimeout)
	defer cancel()
	locks, err := ws.m.st.Get(ctx, keys)
	if err != nil {
		ws.m.log.Debug("watched keys not read, trying again", "keys", len(keys), "error", err)
	}
	for i, w := range part {
		if err != nil {
			w.check(jittered(ws.m.cfg.PollInterval))
		} else {
			w.found(locks[i], w.changes)
		}
	}
}
