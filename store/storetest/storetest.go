// Package storetest is the conformance suite of the lock stores: one list of
// rules, each with a small test, that every implementation of [store.Store] runs.
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Backend { return … })
//	}
//
// The suite opens several instances on the same data, as the sidecars of several
// pods would, and looks at a store only through its interface. It may be run
// against shared, used data: every test has namespaces, leases and grants of its
// own, and expects nothing of anybody else's.
//
// # Time
//
// A real database cannot run in virtual time, so the suite waits for events: for
// news, or for the store's own answer to change. The only sleep is the pause
// between two questions. Leases that must expire live for [shortTTL]; a test that
// needs such a lease still alive asks again with a fresh one if it was too slow.
// Everything else is held under leases that outlive the test. Tests run in parallel,
// so that their waiting overlaps.
//
// # The model
//
// [RunModel] is the other half: random operations of two instances, one after the other,
// against a plain model (model.go) of what they may see. There, time goes by when the
// machine says so: in virtual time, or by making all leases of a database older. The run
// waits for all news after each operation, so a lost hand-off fails it.
//
// All stores do the same. They differ in how something is told: one that is not exact may
// tell it later, in two steps, or twice, and of watches that are over, and may not tell who
// watches that a holder is asked to stop once more. Each place that asks for exact says what
// the difference is.
package storetest

import (
	"testing"

	"github.com/locksidecar/locksidecar/store"
)

// Backend opens instances on shared data.
type Backend interface {
	// Open returns one instance's view of the data. The suite sets OnNews, starts
	// it, and stops it when the test ends. It is called from the test's goroutine.
	Open(store.Identity) store.Store
}

// Run holds a store to every rule. open is called once for each test; it may
// return the same data every time.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	t.Helper()
	for _, group := range groups() {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range group.cases {
				t.Run(c.rule, func(t *testing.T) {
					t.Parallel()
					c.run(newFixture(t, open(t)))
				})
			}
		})
	}
}

// testCase proves one rule.
type testCase struct {
	rule string
	run  func(*fixture)
}

type group struct {
	name  string
	cases []testCase
}

func groups() []group {
	return []group{
		{"lifecycle", lifecycleCases()},
		{"leases", leaseCases()},
		{"acquire", acquireCases()},
		{"release", releaseCases()},
		{"amend", amendCases()},
		{"queue", queueCases()},
		{"cohort", cohortCases()},
		{"shared", sharedCases()},
		{"semaphore", semaphoreCases()},
		{"downgrade", downgradeCases()},
		{"waiters", waitersCases()},
		{"trace", traceCases()},
		{"outcome", outcomeCases()},
		{"hold", holdCases()},
		{"signal", signalCases()},
		{"watch", watchCases()},
		{"death", deathCases()},
		{"repeat", repeatCases()},
		{"tokens", tokenCases()},
		{"read", readCases()},
		{"fleet", fleetCases()},
		{"move", moveCases()},
		{"batch", batchCases()},
		{"races", raceCases()},
		{"coordination races", coordinationRaceCases()},
		{"shared races", sharedRaceCases()},
	}
}
