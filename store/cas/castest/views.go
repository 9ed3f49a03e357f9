package castest

import (
	"testing"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// RunViews tests that the views of a server, which share what they can, keep the rules of a backend and of a store among themselves. open makes
// a server with data of its own.
func RunViews(t *testing.T, open func(t *testing.T) cas.Server) {
	t.Helper()
	t.Run("backend", func(t *testing.T) {
		t.Parallel()
		all := groups()
		delete(all, "lifecycle") // a view's store sees to it that nothing is asked after its end: see the other run
		runGroups(t, true, all, func(t *testing.T) Server { return views{started(t, open)} })
	})
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		server := started(t, open)
		space := cas.NewSpace(server, cas.Config{SweepTerm: -1})
		storetest.Run(t, func(*testing.T) storetest.Backend { return viewsOf{space} })
	})
}

// started starts a server until the end of the test.
func started(t *testing.T, open func(t *testing.T) cas.Server) cas.Server {
	t.Helper()
	s := open(t)
	t.Cleanup(s.Stop)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

type views struct{ cas.Server }

func (v views) Open(instance string) cas.Backend { return v.View(instance) }

type viewsOf struct{ store.Space }

func (v viewsOf) Open(id store.Identity) store.Store { return v.View(id) }
