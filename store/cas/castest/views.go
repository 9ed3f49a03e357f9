package castest

import (
	"context"
	"testing"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// together are the tests of what the views of a process share: renewals, the way of letters, and what is remembered.
var together = []string{
	"present record", "leases as conditions", "a lease dies meanwhile", "late renewals", "leases", "a lease ends", "renewals keep a lease", "what is left",
	"opened leases", "letters", "hears", "a kept key", "letters in order", "no letter", "posted letters", "names", "one wins",
}

// RunViews tests that the views of one process, which share what they can, keep the rules of a backend and of a store among themselves.
func RunViews(t *testing.T, server func(t *testing.T) Server) {
	t.Helper()
	t.Run("backend", func(t *testing.T) {
		t.Parallel()
		all, chosen := groups(), map[string]func(*testing.T, *client){}
		for _, name := range together {
			chosen[name] = all[name]
		}
		runGroups(t, true, chosen, func(t *testing.T) Server { return oneProcess{started(t, server(t).Connect())} })
	})
	t.Run("store", func(t *testing.T) {
		t.Parallel()
		storetest.RunTogether(t, storetest.In(Spaces(t, server(t), 1)...))
	})
}

// RunConformance runs the suite of the stores in three processes.
func RunConformance(t *testing.T, server Server) {
	t.Helper()
	storetest.Run(t, storetest.In(Spaces(t, server, 3)...))
}

// Spaces starts the spaces of so many processes, until the end of the test.
func Spaces(t *testing.T, server Server, processes int) (spaces []store.Space) {
	t.Helper()
	for range processes {
		spaces = append(spaces, cas.NewSpace(started(t, server.Connect()), cas.Config{SweepTerm: -1}))
	}
	return spaces
}

// oneProcess is the server of a process that runs already.
type oneProcess struct{ cas.Server }

func (p oneProcess) Connect() cas.Server { return running(p) }

type running struct{ cas.Server }

func (running) Start(context.Context) error { return nil }

func (running) Stop() {}
