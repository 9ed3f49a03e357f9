package storetest

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// engine is a store with all capabilities. A call of a capability that the store lacks skips the
// test.
type engine struct {
	store.Store
	store.Lister
	store.Waiters
	store.Signaler
	store.Watcher
	store.Mover
	store.Reaper
	store.Census
	store.Listener
}

// tester is a test or a run of the state machine.
type tester interface {
	Helper()
	Skipf(format string, args ...any)
}

func engineOf(t tester, s store.Store) engine {
	lacks := lacking{t}
	return engine{
		Store: s, Lister: capability[store.Lister](s, lacks), Waiters: capability[store.Waiters](s, lacks), Signaler: capability[store.Signaler](s, lacks),
		Watcher: capability[store.Watcher](s, lacks), Mover: capability[store.Mover](s, lacks),
		Reaper: capability[store.Reaper](s, lacks), Census: capability[store.Census](s, lacks),
		Listener: capability[store.Listener](s, lacks),
	}
}

func capability[C any](s store.Store, lacks C) C {
	if c, ok := s.(C); ok {
		return c
	}
	return lacks
}

// needs skips a case whose goroutines use a capability that the engine lacks.
func needs[C any](in *instance) {
	in.Helper()
	if _, ok := in.Store.(C); !ok {
		in.Skipf("the engine is not a %T", *new(C))
	}
}

// lacking implements the capabilities that an engine does not have.
type lacking struct{ t tester }

func (l lacking) skip(capability string) error {
	l.t.Helper()
	l.t.Skipf("the engine is not a store.%s", capability)
	return nil
}

func (l lacking) List(context.Context, store.Query) ([]store.Lock, error) {
	return nil, l.skip("Lister")
}

func (l lacking) Waiting(context.Context, store.WaitQuery) ([]store.Waiting, error) {
	return nil, l.skip("Waiters")
}

func (l lacking) Signal(context.Context, []store.Signal) ([]store.ClaimStatus, error) {
	return nil, l.skip("Signaler")
}

func (l lacking) Signals(context.Context, []store.LeaseID) ([]store.Signal, error) {
	return nil, l.skip("Signaler")
}

func (l lacking) Acknowledge(context.Context, []store.SignalID) error { return l.skip("Signaler") }

func (l lacking) Watch(context.Context, []string, store.LeaseID) error { return l.skip("Watcher") }

func (l lacking) Unwatch(context.Context, []string) error { return l.skip("Watcher") }

func (l lacking) HeldUnder(context.Context, []string) (store.HeldGrants, error) {
	return store.HeldGrants{}, l.skip("Mover")
}

func (l lacking) Move(context.Context, store.LeaseID, store.LeaseID, []store.Move) ([]store.ClaimStatus, error) {
	return nil, l.skip("Mover")
}

func (l lacking) ReapInstance(context.Context, string) error { return l.skip("Reaper") }

func (l lacking) Sweep(context.Context) error { return l.skip("Reaper") }

func (l lacking) Stats(context.Context) (store.Stats, error) { return store.Stats{}, l.skip("Census") }

func (l lacking) Elect(context.Context, time.Duration) (store.Election, error) {
	return store.Election{}, l.skip("Census")
}

// Listen does nothing, because only engines with the capability pay for news.
func (lacking) Listen(bool) {}
