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
	"slices"
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
	runGroups(t, groups(), open)
}

func runGroups(t *testing.T, groups []group, open func(t *testing.T) Backend) {
	t.Helper()
	for _, group := range groups {
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

// RunTogether tests the rules for which instances need what the views of a space share: renewals, news, connections, and what is remembered of
// keys and of the server. Run tests all rules between spaces, as most sidecars are.
func RunTogether(t *testing.T, open func(t *testing.T) Backend) {
	t.Helper()
	runGroups(t, slices.DeleteFunc(groups(), func(g group) bool { return !g.together }), open)
}

// In opens the instances of a test in different spaces, in turn, as sidecars are in different processes. Other tests have views of the same
// spaces. The caller starts and stops the spaces.
func In(spaces ...store.Space) func(*testing.T) Backend {
	return func(*testing.T) Backend { return &inTurn{spaces: spaces} }
}

// mostSpaces is how many spaces In may get.
const mostSpaces = 3

type inTurn struct {
	spaces []store.Space
	opened int
}

func (b *inTurn) Open(id store.Identity) store.Store {
	space := b.spaces[b.opened%len(b.spaces)]
	b.opened++
	return space.View(id)
}

// testCase proves one rule.
type testCase struct {
	rule string
	run  func(*fixture)
}

type group struct {
	name  string
	cases []testCase
	// together: RunTogether tests them, too.
	together bool
}

func groups() []group {
	return []group{
		{"lifecycle", lifecycleCases(), true},
		{"leases", leaseCases(), true},
		{"acquire", acquireCases(), true},
		{"release", releaseCases(), true},
		{"amend", amendCases(), false},
		{"queue", queueCases(), true},
		{"cohort", cohortCases(), true},
		{"keep", keepCases(), true},
		{"shared", sharedCases(), false},
		{"semaphore", semaphoreCases(), false},
		{"downgrade", downgradeCases(), false},
		{"waiters", waitersCases(), false},
		{"trace", traceCases(), false},
		{"outcome", outcomeCases(), false},
		{"hold", holdCases(), false},
		{"signal", signalCases(), true},
		{"watch", watchCases(), true},
		{"death", deathCases(), true},
		{"repeat", repeatCases(), false},
		{"tokens", tokenCases(), false},
		{"read", readCases(), false},
		{"fleet", fleetCases(), false},
		{"move", moveCases(), true},
		{"batch", batchCases(), false},
		{"races", raceCases(), true},
		{"fairness", fairCases(), false},
		{"coordination races", coordinationRaceCases(), false},
		{"shared races", sharedRaceCases(), false},
	}
}
