// Package storetest is the conformance suite of the lock stores: one list of
// rules, each with a small test, that every implementation of [store.Store] runs.
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Backend { return … })
//	}
//
// The suite opens several instances on the same data, like the sidecars of several
// pods, and uses a store only through its interface. The data may be shared with other
// users: every test has its own namespaces, leases and grants.
//
// # Time
//
// A real database cannot run in virtual time, so the suite waits for events: for
// news, or for another answer of the store. The only sleep is the pause of a poll.
// Leases that must expire live for [shortTTL]. If a test was too slow for such a lease,
// it tries again with a new one. All other leases outlive the test. Tests run in parallel,
// so that their waiting overlaps.
//
// # The model
//
// [RunModel] does random operations on two instances, one after the other, and compares
// their answers with a plain model (model.go). Time passes only by the machine's steps: in
// virtual time, or by making all leases of a database older. The run waits for all news
// after each operation, so a lost hand-off fails it.
//
// All stores give the same results, but their news may differ. A store that is not exact
// may send news later, in two steps, or twice, and also for watches that have ended. It need
// not notify watchers of a repeated stop. Each use of exact in the model says what differs.
package storetest

import (
	"testing"

	"github.com/locksidecar/locksidecar/store"
)

// Backend opens instances on shared data.
type Backend interface {
	// Open returns a store for one instance. The suite starts it, and stops it when the
	// test ends. Open is called from the test's goroutine.
	Open(store.Identity) store.Store
}

// Run tests a store against every rule. open is called once for each test, and may
// return the same data each time.
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
		{"keep", keepCases()},
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
		{"fairness", fairCases()},
		{"coordination races", coordinationRaceCases()},
		{"shared races", sharedRaceCases()},
	}
}
