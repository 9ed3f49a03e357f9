package proxy

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// Session is the part of [lease.Session] that this package needs.
type Session interface {
	ID() string
	Name() string
	TTL() time.Duration
	ExpiresIn() time.Duration
	Held() int
	End(lease.EndReason) <-chan struct{}
}

// Locks is the part of [lease.Manager] that this package needs. A nil Session means none.
type Locks interface {
	OpenSession(lease.SessionOptions) (Session, error)
	Session(id string) (Session, error)
	Acquire(context.Context, Session, lease.Request) (lease.Grant, error)
	AcquireAll(context.Context, Session, []string, lease.Request) ([]lease.Grant, error)
	Release(context.Context, Session, lease.ReleaseRequest) (lease.Released, error)
	Amend(context.Context, Session, lease.AmendRequest) (lease.Grant, error)
	Get(ctx context.Context, s Session, key string, noCache bool) (lease.View, error)
	List(context.Context, Session, lease.ListRequest) (lease.Page, error)
	Waiters(context.Context, lease.WaitersRequest) (lease.WaitersPage, error)
	AskToStop(ctx context.Context, key string, token int64, reason *string) error
	Break(ctx context.Context, was store.Lock, token int64) error
	Watch(ctx context.Context, s Session, key string, notify func(lease.Event)) (v lease.View, stop func(), err error)
	Stats(context.Context) (store.Stats, error)
	HandBack(Session, lease.Grant)
	Ready() error
}

// FromManager makes a manager usable as [Locks].
func FromManager(m *lease.Manager) Locks { return manager{m} }

// manager adapts a lease.Manager, whose methods take *lease.Session.
type manager struct{ *lease.Manager }

func own(s Session) *lease.Session {
	if s == nil {
		return nil
	}
	return s.(*lease.Session)
}

func (a manager) OpenSession(o lease.SessionOptions) (Session, error) {
	s, err := a.Manager.OpenSession(o)
	if err != nil {
		return nil, err // a nil pointer in a Session would not equal nil
	}
	return s, nil
}

func (a manager) Session(id string) (Session, error) {
	s, err := a.Manager.Session(id)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (a manager) Acquire(ctx context.Context, s Session, r lease.Request) (lease.Grant, error) {
	return a.Manager.Acquire(ctx, own(s), r)
}

func (a manager) AcquireAll(ctx context.Context, s Session, keys []string, r lease.Request) ([]lease.Grant, error) {
	return a.Manager.AcquireAll(ctx, own(s), keys, r)
}

func (a manager) Release(ctx context.Context, s Session, r lease.ReleaseRequest) (lease.Released, error) {
	return a.Manager.Release(ctx, own(s), r)
}

func (a manager) Amend(ctx context.Context, s Session, r lease.AmendRequest) (lease.Grant, error) {
	return a.Manager.Amend(ctx, own(s), r)
}

func (a manager) Get(ctx context.Context, s Session, key string, noCache bool) (lease.View, error) {
	return a.Manager.Get(ctx, own(s), key, noCache)
}

func (a manager) List(ctx context.Context, s Session, r lease.ListRequest) (lease.Page, error) {
	return a.Manager.List(ctx, own(s), r)
}

func (a manager) Watch(ctx context.Context, s Session, key string, notify func(lease.Event)) (lease.View, func(), error) {
	return a.Manager.Watch(ctx, own(s), key, notify)
}

func (a manager) HandBack(s Session, g lease.Grant) { a.Manager.HandBack(own(s), g) }
