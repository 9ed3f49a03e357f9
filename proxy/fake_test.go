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
	// waiting hears of each acquire that begins to wait, ended of each session's
	// end, discarded of each grant given back, abandoned of each wait left.
	waiting   chan string
	ended     chan lease.EndReason
	discarded chan lease.Grant
	abandoned chan string
	ready     atomic.Pointer[error]
	last      lease.Request
}

type fakeLock struct {
	session *fakeSession
	token   int64
	data    []byte
	since   time.Time
}

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
		discarded: make(chan lease.Grant, 100), abandoned: make(chan string, 100),
	}
}

func (f *fakeLocks) call(ctx context.Context, op, key string) error {
	if f.hook != nil {
		_ = ctx.Done() // the hook may wait
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
		f: f, o: o, id: fmt.Sprintf("secret-%d", f.opened), name: o.Name,
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
		f.last = r
		l, changed := f.held[r.Key], f.changed
		if l == nil {
			g := f.grant(s, r, began)
			f.mu.Unlock()
			return g, nil
		}
		seen := f.view(r.Key, l)
		f.mu.Unlock()
		if r.Wait == 0 {
			return lease.Grant{}, &lease.HeldError{Lock: seen, Cached: !r.NoCache}
		}
		if !told {
			tell(f.waiting, r.Key)
		}
		select {
		case <-changed:
		case <-over:
			return lease.Grant{}, lease.ErrSessionEnded
		case <-timeout:
			return lease.Grant{}, &lease.TimeoutError{Lock: seen, Position: 2, Waited: time.Since(began)}
		case <-ctx.Done():
			tell(f.abandoned, r.Key)
			return lease.Grant{}, lease.ErrAbandoned
		}
	}
}

// grant is called with f.mu held.
func (f *fakeLocks) grant(s *fakeSession, r lease.Request, began time.Time) lease.Grant {
	f.token++
	l := &fakeLock{token: f.token, data: r.Data, since: time.Now()}
	g := lease.Grant{
		Key: r.Key, Token: f.token, Bind: r.Bind, ExpiresIn: 15 * time.Second,
		Waited: time.Since(began), AcquiredAt: l.since,
	}
	if r.Bind == lease.BindSession {
		l.session, g.Session = s, s.name
	}
	f.held[r.Key] = l
	return g
}

func (f *fakeLocks) view(key string, l *fakeLock) store.Lock {
	h := store.Holder{Instance: "pod-1/abc", Pod: "pod-1", AcquiredAt: l.since, ExpiresIn: 10 * time.Second, Data: l.data}
	if l.session != nil {
		h.Session = l.session.name
	}
	return store.Lock{Key: key, Held: true, Token: l.token, Holder: h, QueueLength: 1}
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
	if _, err := f.claim(s, key, token); err != nil {
		return lease.Released{}, err
	}
	delete(f.held, key)
	f.change()
	return lease.Released{Key: key, HeldFor: 7 * time.Millisecond}, nil
}

func (f *fakeLocks) Amend(ctx context.Context, s Session, r lease.AmendRequest) (lease.Grant, error) {
	if err := f.call(ctx, "amend", r.Key); err != nil {
		return lease.Grant{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l, err := f.claim(s, r.Key, r.Token)
	if err != nil {
		return lease.Grant{}, err
	}
	if r.TTL > 0 && l.session != nil {
		return lease.Grant{}, &lease.TTLOnSessionError{Key: r.Key}
	}
	if r.SetData {
		l.data = r.Data
	}
	g := lease.Grant{Key: r.Key, Token: r.Token, Bind: lease.BindTTL, ExpiresIn: r.TTL, AcquiredAt: l.since}
	if l.session != nil {
		g.Session, g.Bind = l.session.name, lease.BindSession
	}
	return g, nil
}

func (f *fakeLocks) Get(ctx context.Context, s Session, key string, _ bool) (lease.View, error) {
	if err := f.call(ctx, "get", key); err != nil {
		return lease.View{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.held[key]
	if l == nil {
		return lease.View{Lock: store.Lock{Key: key}}, nil
	}
	fs, _ := s.(*fakeSession)
	return lease.View{Lock: f.view(key, l), Mine: fs != nil && l.session == fs}, nil
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

func (f *fakeLocks) Discard(_ Session, g lease.Grant) {
	f.mu.Lock()
	if l := f.held[g.Key]; l != nil && l.token == g.Token {
		delete(f.held, g.Key)
		f.change()
	}
	f.mu.Unlock()
	tell(f.discarded, g)
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
	tell(s.f.ended, reason)
	return s.released
}

// tell tells those who listen, and does not wait for them.
func tell[T any](ch chan<- T, v T) {
	select {
	case ch <- v:
	default:
	}
}
