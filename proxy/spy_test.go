package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// spy is a real lock manager on a memory store whose tokens are 1, 2, and so on. A test can delay its calls and make them fail,
// and hears through channels what happens.
type spy struct {
	*lease.Manager

	// hook, if set, is called by each call before it does anything.
	hook func(op, key string) error
	// onGrant, if set, is called before a grant is returned.
	onGrant func()
	// onContext, if set, is called with the context of each call. count, if set, answers Stats.
	onContext func(op string, ctx context.Context)
	count     func(ctx context.Context) (store.Stats, error)
	// waiting gets the key of each acquire that is queued, abandoned that of each acquire whose caller left.
	waiting, abandoned chan string
	// ended gets the reason of each session's end, handedBack each grant handed back.
	ended      chan lease.EndReason
	handedBack chan lease.Grant
	// watching gets the key of each watch that is ready, unwatched that of each watch that ended.
	watching, unwatched chan string
	// ready, if set, answers Ready.
	ready atomic.Pointer[error]

	mu          sync.Mutex
	last        lease.Request                   // the last acquire
	released    lease.ReleaseRequest            // the last
	amended     lease.AmendRequest              // the last
	opened      map[string]lease.SessionOptions // by the ids of their sessions
	grants      int
	subscribers map[*subscriber]bool
}

// subscriber is a watch of a key.
type subscriber struct {
	key    string
	notify func(lease.Event)
}

// queueing is a store that says which keys it has queued a call for.
type queueing struct {
	*memory.Store
	queued chan string
}

func (q queueing) Enqueue(ctx context.Context, asks []store.Ask) ([]store.Answer, error) {
	answers, err := q.Store.Enqueue(ctx, asks)
	for i := range answers {
		if answers[i].Outcome == store.Queued {
			post(q.queued, asks[i].Key)
		}
	}
	return answers, err
}

func newSpy(t testing.TB) *spy {
	t.Helper()
	f := &spy{
		waiting: make(chan string, 100), abandoned: make(chan string, 100), ended: make(chan lease.EndReason, 100),
		handedBack: make(chan lease.Grant, 1000), watching: make(chan string, 100), unwatched: make(chan string, 100),
		subscribers: make(map[*subscriber]bool), opened: make(map[string]lease.SessionOptions),
	}
	st := memory.NewSpaceAfter(0).Open(store.Identity{Namespace: "test", Instance: "pod-1/abc", Pod: "pod-1"})
	f.Manager = newManager(t, queueing{st, f.waiting}, func(c *lease.Config) {
		c.MaxSessions, c.MaxLocksPerSession, c.MaxWaiters = 1000, 2000, 1000
	})
	return f
}

// newManager starts a manager on a store.
func newManager(t testing.TB, st store.Store, change ...func(*lease.Config)) *lease.Manager {
	t.Helper()
	cfg := lease.Config{
		Instance: "pod-1/1", Pod: "pod-1", TTL: 15 * time.Second, RenewInterval: 5 * time.Second,
		StoreTimeout: 5 * time.Second, PollInterval: time.Second, CacheSize: 100, CacheTTL: 100 * time.Millisecond,
		BatchMax: 100, MaxSessions: 10, MaxLocksPerSession: 100, MaxWaiters: 100, Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&cfg)
	}
	m, err := lease.New(cfg, st)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Start(context.Background(), m.News); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Stop()
		st.Stop()
	})
	return m
}

// take gives a key to nobody's session for an hour.
func (f *spy) take(t testing.TB, key string) lease.Grant {
	t.Helper()
	g, err := f.Manager.Acquire(context.Background(), nil, lease.Request{Key: key, Bind: lease.BindTTL, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// free releases what take gave.
func (f *spy) free(t testing.TB, g lease.Grant) {
	t.Helper()
	if _, err := f.Manager.Release(context.Background(), nil, lease.ReleaseRequest{Key: g.Key, Token: g.Token}); err != nil {
		t.Fatal(err)
	}
}

// holds reports whether a key is held.
func (f *spy) holds(t testing.TB, key string) bool { return f.view(t, key).Held }

func (f *spy) view(t testing.TB, key string) lease.View {
	t.Helper()
	v, err := f.Manager.Get(context.Background(), nil, key, true)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (f *spy) call(ctx context.Context, op, key string) error {
	if f.onContext != nil {
		f.onContext(op, ctx)
	}
	if f.hook != nil {
		return f.hook(op, key)
	}
	return nil
}

// granted is how many grants there were, sessions how many sessions were opened.
func (f *spy) granted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.grants
}

func (f *spy) sessions() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.opened)
}

// options are those with which a session was opened.
func (f *spy) options(id string) lease.SessionOptions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.opened[id]
}

func (f *spy) OpenSession(o lease.SessionOptions) (*lease.Session, error) {
	if err := f.call(context.Background(), "open", o.Name); err != nil {
		return nil, err
	}
	onEnd := o.OnEnd
	o.OnEnd = func(reason lease.EndReason) {
		if onEnd != nil {
			onEnd(reason)
		}
		post(f.ended, reason)
	}
	if o.Name == "" {
		o.Name = fmt.Sprintf("public-%d", f.sessions()+1)
	}
	s, err := f.Manager.OpenSession(o)
	if err == nil {
		f.mu.Lock()
		f.opened[s.ID()] = o
		f.mu.Unlock()
	}
	return s, err
}

func (f *spy) Acquire(ctx context.Context, s *lease.Session, r lease.Request) (lease.Grant, error) {
	if err := f.call(ctx, "acquire", r.Key); err != nil {
		return lease.Grant{}, err
	}
	g, err := f.Manager.Acquire(ctx, s, r)
	f.acquired(r, r.Key, 1, err)
	return g, err
}

func (f *spy) AcquireAll(ctx context.Context, s *lease.Session, keys []string, r lease.Request) ([]lease.Grant, error) {
	if err := f.call(ctx, "acquireAll", keys[0]); err != nil {
		return nil, err
	}
	all, err := f.Manager.AcquireAll(ctx, s, keys, r)
	f.acquired(r, keys[0], len(keys), err)
	return all, err
}

func (f *spy) acquired(r lease.Request, key string, grants int, err error) {
	f.mu.Lock()
	f.last = r
	if err == nil {
		f.grants += grants
	}
	f.mu.Unlock()
	if err == nil && f.onGrant != nil {
		f.onGrant()
	}
	if errors.Is(err, lease.ErrCallerLeft) {
		post(f.abandoned, cmp.Or(lease.KeyOf(err), key))
	}
}

func (f *spy) Release(ctx context.Context, s *lease.Session, r lease.ReleaseRequest) (lease.Released, error) {
	if err := f.call(ctx, "release", r.Key); err != nil {
		return lease.Released{}, err
	}
	f.mu.Lock()
	f.released = r
	f.mu.Unlock()
	return f.Manager.Release(ctx, s, r)
}

func (f *spy) Amend(ctx context.Context, s *lease.Session, r lease.AmendRequest) (lease.Grant, error) {
	if err := f.call(ctx, "amend", r.Key); err != nil {
		return lease.Grant{}, err
	}
	f.mu.Lock()
	f.amended = r
	f.mu.Unlock()
	return f.Manager.Amend(ctx, s, r)
}

func (f *spy) Get(ctx context.Context, s *lease.Session, key string, noCache bool) (lease.View, error) {
	if err := f.call(ctx, "get", key); err != nil {
		return lease.View{}, err
	}
	return f.Manager.Get(ctx, s, key, noCache)
}

func (f *spy) AskToStop(ctx context.Context, key string, token int64, reason *string) error {
	if err := f.call(ctx, "stop", key); err != nil {
		return err
	}
	return f.Manager.AskToStop(ctx, key, token, reason)
}

func (f *spy) Break(ctx context.Context, was store.Lock, token int64) error {
	if err := f.call(ctx, "break", was.Key); err != nil {
		return err
	}
	return f.Manager.Break(ctx, was, token)
}

func (f *spy) Stats(ctx context.Context) (store.Stats, error) {
	if f.count == nil {
		return f.Manager.Stats(ctx)
	}
	return f.count(ctx)
}

func (f *spy) HandBack(s *lease.Session, g lease.Grant) {
	f.Manager.HandBack(s, g)
	post(f.handedBack, g)
}

func (f *spy) Ready() error {
	if p := f.ready.Load(); p != nil {
		return *p
	}
	return f.Manager.Ready()
}

// Watch also subscribes to what happen says, and does so while a hook waits.
func (f *spy) Watch(ctx context.Context, s *lease.Session, key string, notify func(lease.Event)) (lease.View, func(), error) {
	w := &subscriber{key, notify}
	f.mu.Lock()
	f.subscribers[w] = true
	f.mu.Unlock()
	forget := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subscribers, w)
	}
	if f.hook != nil {
		var err error
		over := make(chan error, 1)
		go func() { over <- f.hook("watch", key) }()
		select {
		case err = <-over:
		case <-ctx.Done():
			err = lease.ErrCallerLeft
		}
		if err != nil {
			forget()
			return lease.View{}, nil, err
		}
	}
	v, stop, err := f.Manager.Watch(ctx, s, key, notify)
	if err != nil {
		forget()
		return v, nil, err
	}
	post(f.watching, key)
	return v, func() {
		stop()
		forget()
		post(f.unwatched, key)
	}, nil
}

func (f *spy) watches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subscribers)
}

// happen tells all who watch the key of an event.
func (f *spy) happen(e lease.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.subscribers {
		if w.key == e.Key {
			w.notify(e)
		}
	}
}

func (f *spy) List(ctx context.Context, s *lease.Session, r lease.ListRequest) (lease.Page, error) {
	if err := f.call(ctx, "list", fmt.Sprintf("%+v", r)); err != nil {
		return lease.Page{}, err
	}
	return f.Manager.List(ctx, s, r)
}

func (f *spy) Waiters(ctx context.Context, r lease.WaitersRequest) (lease.WaitersPage, error) {
	if err := f.call(ctx, "waiters", r.Key); err != nil {
		return lease.WaitersPage{}, err
	}
	return f.Manager.Waiters(ctx, r)
}

// breakSlowly never comes to the end of breaking a lock.
type breakSlowly struct {
	*spy
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
type watchPanics struct{ *spy }

func (watchPanics) Watch(context.Context, *lease.Session, string, func(lease.Event)) (lease.View, func(), error) {
	panic("a bug")
}

// post tells those who listen, and does not wait for them.
func post[T any](ch chan<- T, v T) {
	select {
	case ch <- v:
	default:
	}
}
