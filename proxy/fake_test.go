package proxy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// fakeLocks is a lock manager of a few lines. It grants what is free, and says
// what it hears through channels.
type fakeLocks struct {
	mu       sync.Mutex
	sessions map[string]*fakeSession
	held     map[string]*fakeLock
	changed  chan struct{} // closed at each change, and made anew
	token    int64
	opened   int

	// hook, if set, is called by each call before it does anything.
	hook func(op, key string) error
	// onContext, if set, is called with the context of each call. count, if set, answers Stats.
	onContext func(op string, ctx context.Context)
	count     func(ctx context.Context) (store.Stats, error)
	// waiting hears of each acquire that begins to wait, ended of each session's
	// end, handedBack of each grant handed back, abandoned of each wait left.
	waiting    chan string
	ended      chan lease.EndReason
	handedBack chan lease.Grant
	abandoned  chan string
	ready      atomic.Pointer[error]
	last       lease.Request
	released   lease.ReleaseRequest // the last
	amended    lease.AmendRequest   // the last
	// waiters answers lists of waiting calls, the last of which was waitersAsked.
	waiters      lease.WaitersPage
	waitersAsked lease.WaitersRequest
	skipping     map[*fakeSkip]bool
	subscribers  map[*fakeWatch]bool
	watching     chan string // gets the key of each watch that is ready
	unwatched    chan string // and of each end of one
}

type fakeLock struct {
	session *fakeSession
	token   int64
	data    []byte
	since   time.Time

	owner    string
	entries  int
	stopping *store.Stopping
}

// secretID is the id of the n-th session.
func secretID(n int) string { return fmt.Sprintf("5ec2e7%026x", n) }

type fakeSession struct {
	f        *fakeLocks
	id, name string
	o        lease.SessionOptions
	over     chan struct{}
	released chan struct{}
}

func newFake() *fakeLocks {
	return &fakeLocks{
		sessions: make(map[string]*fakeSession), held: make(map[string]*fakeLock), changed: make(chan struct{}),
		waiting: make(chan string, 100), ended: make(chan lease.EndReason, 100),
		handedBack: make(chan lease.Grant, 1000), abandoned: make(chan string, 100),
		skipping: make(map[*fakeSkip]bool), subscribers: make(map[*fakeWatch]bool),
		watching: make(chan string, 100), unwatched: make(chan string, 100),
	}
}

func (f *fakeLocks) call(ctx context.Context, op, key string) error {
	if f.onContext != nil {
		f.onContext(op, ctx)
	}
	if f.hook != nil {
		return f.hook(op, key)
	}
	return nil
}

func (f *fakeLocks) OpenSession(o lease.SessionOptions) (Session, error) {
	if err := f.call(context.Background(), "open", o.Name); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened++
	s := &fakeSession{
		f: f, o: o, id: secretID(f.opened), name: o.Name,
		over: make(chan struct{}), released: make(chan struct{}),
	}
	if s.name == "" {
		s.name = fmt.Sprintf("public-%d", f.opened)
	}
	f.sessions[s.id] = s
	return s, nil
}

func (f *fakeLocks) Session(id string) (Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[id]; s != nil && s.o.Explicit {
		return s, nil
	}
	return nil, lease.ErrSessionEnded
}

func (f *fakeLocks) Acquire(ctx context.Context, sess Session, r lease.Request) (lease.Grant, error) {
	if err := f.call(ctx, "acquire", r.Key); err != nil {
		return lease.Grant{}, err
	}
	s, _ := sess.(*fakeSession)
	skip := f.mayBeSkipped(r)
	defer f.drop(skip)
	began := time.Now()
	var g lease.Grant
	err := f.await(ctx, s, r, func() (string, error) {
		f.last = r
		if skip.done {
			return "", &lease.SkippedError{Key: r.Key, Result: skip.result}
		}
		l := f.held[r.Key]
		if l != nil && r.Reentrant && l.session == s && l.owner == r.Owner {
			l.entries++
			g = f.grantOf(r.Key, l, began)
			return "", nil
		}
		if l != nil {
			return r.Key, nil
		}
		g = f.grant(s, r, began)
		return "", nil
	})
	return g, err
}

// await calls try, with f.mu held, until it says that no key is missing.
func (f *fakeLocks) await(ctx context.Context, s *fakeSession, r lease.Request, try func() (missing string, err error)) error {
	began := time.Now()
	var over, timeout <-chan struct{}
	if s != nil {
		over = s.over
	}
	if r.Wait > 0 {
		limited, cancel := context.WithTimeout(context.Background(), r.Wait)
		defer cancel()
		timeout = limited.Done()
	}
	for told := false; ; told = true {
		f.mu.Lock()
		changed := f.changed
		key, err := try()
		if key == "" || err != nil {
			f.mu.Unlock()
			return err
		}
		seen := f.view(key, f.held[key])
		f.mu.Unlock()
		if r.Wait == 0 {
			return &lease.HeldError{Lock: seen, Cached: !r.NoCache}
		}
		if !told {
			post(f.waiting, key)
		}
		select {
		case <-changed:
		case <-over:
			return lease.ErrSessionEnded
		case <-timeout:
			return &lease.TimeoutError{Lock: seen, Position: 2, Waited: time.Since(began)}
		case <-ctx.Done():
			post(f.abandoned, key)
			return lease.ErrCallerLeft
		}
	}
}

// grant is called with f.mu held.
func (f *fakeLocks) grant(s *fakeSession, r lease.Request, began time.Time) lease.Grant {
	f.token++
	l := &fakeLock{token: f.token, data: r.Data, since: time.Now(), owner: r.Owner, entries: 1}
	if r.Bind == lease.BindSession {
		l.session = s
	}
	f.held[r.Key] = l
	return f.grantOf(r.Key, l, began)
}

func (f *fakeLocks) grantOf(key string, l *fakeLock, began time.Time) lease.Grant {
	g := lease.Grant{
		Key: key, Token: l.token, Bind: lease.BindTTL, ExpiresIn: 15 * time.Second,
		Waited: time.Since(began), AcquiredAt: l.since, Reentry: l.entries,
	}
	if l.session != nil {
		g.Session, g.Bind = l.session.name, lease.BindSession
	}
	return g
}

func (f *fakeLocks) view(key string, l *fakeLock) store.Lock {
	h := store.Holder{Instance: "pod-1/abc", Pod: "pod-1", AcquiredAt: l.since, ExpiresIn: 10 * time.Second, Data: l.data, Owner: l.owner}
	if l.session != nil {
		h.Session = l.session.name
	}
	return store.Lock{Key: key, Held: true, Token: l.token, Holder: h, QueueLength: 1, Stopping: l.stopping}
}

// granted is how many grants there were.
func (f *fakeLocks) granted() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.token
}

// change is called with f.mu held.
func (f *fakeLocks) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeLocks) claim(s Session, key string, token int64) (*fakeLock, error) {
	fs, _ := s.(*fakeSession)
	l := f.held[key]
	switch {
	case l == nil || l.token != token:
		return nil, &lease.NotHolderError{Key: key, Token: token, Reason: lease.ReasonUnknownToken}
	case l.session != nil && l.session != fs:
		return nil, &lease.NotHolderError{Key: key, Token: token, Reason: lease.ReasonOtherSession}
	}
	return l, nil
}

func (f *fakeLocks) Release(ctx context.Context, s Session, r lease.ReleaseRequest) (lease.Released, error) {
	key, token := r.Key, r.Token
	if err := f.call(ctx, "release", key); err != nil {
		return lease.Released{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released = r
	l, err := f.claim(s, key, token)
	if err != nil {
		return lease.Released{}, err
	}
	if r.Reentry != 0 && r.Reentry != l.entries {
		return lease.Released{}, &lease.ReentryError{Key: key, Given: r.Reentry, Have: l.entries}
	}
	if l.entries--; l.entries <= 0 {
		delete(f.held, key)
		f.skip(r)
		f.change()
	}
	return lease.Released{Key: key, Reentry: max(0, l.entries), HeldFor: 7 * time.Millisecond}, nil
}

func (f *fakeLocks) Amend(ctx context.Context, s Session, r lease.AmendRequest) (lease.Grant, error) {
	if err := f.call(ctx, "amend", r.Key); err != nil {
		return lease.Grant{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.amended = r
	l, err := f.claim(s, r.Key, r.Token)
	if err != nil {
		return lease.Grant{}, err
	}
	if r.TTL > 0 && l.session != nil {
		return lease.Grant{}, &lease.InvalidError{Of: "field ttl_ms", Text: r.Key}
	}
	if r.SetData {
		l.data = r.Data
	}
	g := f.grantOf(r.Key, l, time.Now())
	g.Stopping = l.stopping
	return g, nil
}

func (f *fakeLocks) Get(ctx context.Context, s Session, key string, _ bool) (lease.View, error) {
	if err := f.call(ctx, "get", key); err != nil {
		return lease.View{}, err
	}
	return f.look(s, key), nil
}

func (f *fakeLocks) look(s Session, key string) lease.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.held[key]
	if l == nil {
		return lease.View{Lock: store.Lock{Key: key}}
	}
	fs, _ := s.(*fakeSession)
	return lease.View{Lock: f.view(key, l), Mine: fs != nil && l.session == fs}
}

func (f *fakeLocks) List(ctx context.Context, _ Session, r lease.ListRequest) (lease.Page, error) {
	if err := f.call(ctx, "list", fmt.Sprintf("%+v", r)); err != nil {
		return lease.Page{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	page := lease.Page{}
	for key, l := range f.held {
		page.Locks = append(page.Locks, lease.View{Lock: f.view(key, l)})
	}
	if len(page.Locks) > 0 {
		page.Next = page.Locks[len(page.Locks)-1].Key
	}
	return page, nil
}

func (f *fakeLocks) Stats(ctx context.Context) (store.Stats, error) {
	if f.count == nil {
		return store.Stats{}, nil
	}
	return f.count(ctx)
}

func (f *fakeLocks) HandBack(_ Session, g lease.Grant) {
	f.mu.Lock()
	if l := f.held[g.Key]; l != nil && l.token == g.Token {
		delete(f.held, g.Key)
		f.change()
	}
	f.mu.Unlock()
	post(f.handedBack, g)
}

func (f *fakeLocks) Ready() error {
	if p := f.ready.Load(); p != nil {
		return *p
	}
	return nil
}

func (s *fakeSession) ID() string               { return s.id }
func (s *fakeSession) Name() string             { return s.name }
func (s *fakeSession) TTL() time.Duration       { return 15 * time.Second }
func (s *fakeSession) ExpiresIn() time.Duration { return 14 * time.Second }

func (s *fakeSession) Held() int {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	n := 0
	for _, l := range s.f.held {
		if l.session == s {
			n++
		}
	}
	return n
}

func (s *fakeSession) End(reason lease.EndReason) <-chan struct{} {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.sessions[s.id] == nil {
		return s.released
	}
	delete(s.f.sessions, s.id)
	for key, l := range s.f.held {
		if l.session == s {
			delete(s.f.held, key)
		}
	}
	s.f.change()
	close(s.over)
	close(s.released)
	if s.o.OnEnd != nil {
		s.o.OnEnd(reason)
	}
	post(s.f.ended, reason)
	return s.released
}

// tell tells those who listen, and does not wait for them.
func post[T any](ch chan<- T, v T) {
	select {
	case ch <- v:
	default:
	}
}
