package proxy

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// fakeSkip is a wait that a successful release ends.
type fakeSkip struct {
	key    string
	done   bool
	result []byte
}

func (f *fakeLocks) mayBeSkipped(r lease.Request) *fakeSkip {
	skip := &fakeSkip{key: r.Key}
	if r.Skip {
		f.mu.Lock()
		f.skipping[skip] = true
		f.mu.Unlock()
	}
	return skip
}

func (f *fakeLocks) drop(skip *fakeSkip) {
	f.mu.Lock()
	delete(f.skipping, skip)
	f.mu.Unlock()
}

// skip is called with f.mu held.
func (f *fakeLocks) skip(r lease.ReleaseRequest) {
	for skip := range f.skipping {
		if skip.key == r.Key && r.Outcome == store.Success {
			skip.done, skip.result = true, r.Result
		}
	}
}

func (f *fakeLocks) AcquireAll(
	ctx context.Context, sess Session, keys []string, r lease.Request,
) (all []lease.Grant, err error) {
	if err := f.call(ctx, "acquireAll", keys[0]); err != nil {
		return nil, err
	}
	s, _ := sess.(*fakeSession)
	began := time.Now()
	err = f.await(ctx, s, r, func() (string, error) {
		f.last = r
		for _, key := range keys {
			if f.held[key] != nil {
				return key, nil
			}
		}
		for _, key := range keys {
			r.Key = key
			all = append(all, f.grant(s, r, began))
		}
		return "", nil
	})
	return all, err
}

func (f *fakeLocks) AskToStop(ctx context.Context, key string, token int64, reason *string) error {
	if err := f.call(ctx, "stop", key); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.held[key]
	switch {
	case ctx.Err() != nil:
		return lease.ErrCallerLeft
	case l == nil || token != 0 && token != l.token:
		return &lease.NotHeldError{Key: key, Token: token}
	}
	l.stopping = &store.Stopping{Reason: reason, At: l.since}
	if l.session != nil && l.session.o.OnStop != nil {
		l.session.o.OnStop(lease.Stop{Key: key, Token: l.token, Reason: reason})
	}
	return nil
}

func (f *fakeLocks) Break(ctx context.Context, was store.Lock, _ int64) error {
	key := was.Key
	if err := f.call(ctx, "break", key); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.held[key]
	if l == nil || l.token != was.Token {
		return nil
	}
	delete(f.held, key)
	f.change()
	if l.session != nil && l.session.o.OnLost != nil {
		l.session.o.OnLost(lease.Lost{Key: key, Token: l.token, Reason: lease.LostForced})
	}
	return nil
}

// fakeWatch is a subscription to a key.
type fakeWatch struct {
	key    string
	notify func(lease.Event)
}

func (f *fakeLocks) Watch(
	ctx context.Context, s Session, key string, notify func(lease.Event),
) (v lease.View, stop func(), err error) {
	w := &fakeWatch{key, notify}
	f.mu.Lock()
	f.subscribers[w] = true // also while the hook waits: events that come then are sent after the state
	f.mu.Unlock()
	stop = func() {
		f.mu.Lock()
		delete(f.subscribers, w)
		f.mu.Unlock()
		post(f.unwatched, key)
	}
	if f.hook != nil {
		over := make(chan error, 1)
		go func() { over <- f.hook("watch", key) }()
		select {
		case err = <-over:
		case <-ctx.Done():
			err = lease.ErrCallerLeft
		}
	}
	if err != nil {
		f.mu.Lock()
		delete(f.subscribers, w)
		f.mu.Unlock()
		return lease.View{}, nil, err
	}
	post(f.watching, key)
	return f.look(s, key), stop, nil
}

func (f *fakeLocks) watches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subscribers)
}

// happen tells all who watch the key of an event.
func (f *fakeLocks) happen(e lease.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.subscribers {
		if w.key == e.Key {
			w.notify(e)
		}
	}
}

// breakSlowly never comes to the end of breaking a lock.
type breakSlowly struct {
	*fakeLocks
	begun, over chan struct{}
}

func (b breakSlowly) Break(ctx context.Context, _ store.Lock, _ int64) error {
	done := ctx.Done()
	close(b.begun)
	<-done
	close(b.over)
	return lease.ErrCallerLeft
}

// watchPanics has a bug.
type watchPanics struct{ *fakeLocks }

func (watchPanics) Watch(context.Context, Session, string, func(lease.Event)) (lease.View, func(), error) {
	panic("a bug")
}

func (f *fakeLocks) Waiters(ctx context.Context, r lease.WaitersRequest) (lease.WaitersPage, error) {
	if err := f.call(ctx, "waiters", r.Key); err != nil {
		return lease.WaitersPage{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waitersAsked = r
	return f.waiters, nil
}
