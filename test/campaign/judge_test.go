package campaign

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

var keptAsEver = func() []time.Duration {
	keep, err := keepOf(defaultKeep)
	if err != nil {
		panic(err)
	}
	return keep
}()

// TestKeepers: for how long sidecars keep keys is read, and printed so that it can be read again.
func TestKeepers(t *testing.T) {
	if got := keepText(keptAsEver); got != defaultKeep || !slices.Equal(keepers(keptAsEver), []int{0, 1}) {
		t.Errorf("%q, and %v keep keys", got, keepers(keptAsEver))
	}
	for _, wrong := range []string{"", "1s", "1s,1s,x", "1s,1s,1s,1s"} {
		if _, err := keepOf(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
	none := fault.Terms{Store: world.PostgreSQL, Seed: 7, Length: time.Minute, Kinds: fault.Kinds(world.PostgreSQL)}
	if got, want := replay(none, make([]time.Duration, sidecars)), "make campaign SEED=7 LENGTH=1m0s KEEP=0,0,0"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestStruck: a fault that did not bite, was not healed, or did not come, fails the run;
// so does a plan without any.
func TestStruck(t *testing.T) {
	plan := fault.Make(fault.Terms{Seed: 1, Length: 20 * time.Second, Kinds: fault.Kinds(world.PostgreSQL), Sidecars: sidecars, Apps: apps})
	all := func() (outcomes []fault.Outcome) {
		for _, e := range plan {
			outcomes = append(outcomes, fault.Outcome{Event: e, Bites: 1})
		}
		return outcomes
	}
	if err := struck(plan, all()); err != nil {
		t.Errorf("all have bitten: %v", err)
	}
	toothless, broken := all(), all()
	toothless[1].Bites = 0
	broken[1].Err = errors.New("not healed")
	for name, c := range map[string]struct {
		outcomes []fault.Outcome
		want     string
	}{
		"toothless": {toothless, plan[1].String() + ", planned for " + plan[1].At.String() + ", did not bite"},
		"broken":    {broken, "not healed"},
		"missing":   {all()[1:], "faults happened of"},
	} {
		if err := struck(plan, c.outcomes); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if struck(nil, nil) == nil {
		t.Error("a plan without faults passes")
	}
}

// TestCISeedsStrikeWithAll kinds of faults that they shall strike each store with, in the time that CI has.
func TestCISeedsStrikeWithAll(t *testing.T) {
	for _, store := range world.Engines {
		seen := make(map[string]bool)
		for _, seed := range seeds {
			plan := fault.Make(fault.Terms{Seed: seed, Brief: true, Kinds: onceOf(store, keptAsEver), Sidecars: sidecars, Apps: apps, Keepers: keepers(keptAsEver)})
			for _, e := range plan {
				seen[e.Kind.Name] = true
			}
			if plan.Length() > 50*time.Second {
				t.Errorf("seed %d strikes %s for %s", seed, store, plan.Length())
			}
		}
		for _, k := range onceOf(store, keptAsEver) {
			if !seen[k.Name] {
				t.Errorf("CI's seeds never strike %s with %s", store, k.Name)
			}
		}
	}
}

// TestCILeavesNoKindOut: each kind strikes at least one of the stores.
func TestCILeavesNoKindOut(t *testing.T) {
	struck := make(map[string]bool)
	for _, store := range world.Engines {
		for _, k := range onceOf(store, keptAsEver) {
			struck[k.Name] = true
		}
	}
	for _, store := range world.Engines {
		for _, k := range kindsOf(store, keptAsEver) {
			if !struck[k.Name] {
				t.Errorf("CI never strikes with %s", k.Name)
			}
		}
	}
}

// TestReplay: what is printed starts the same run.
func TestReplay(t *testing.T) {
	all := kindsOf(world.PostgreSQL, keptAsEver)
	kinds, err := fault.Find(world.PostgreSQL, []string{"cut", "disk-full"})
	if err != nil {
		t.Fatal(err)
	}
	for want, terms := range map[string]fault.Terms{
		"make campaign SEED=7 LENGTH=1m0s":                       {Store: world.PostgreSQL, Seed: 7, Length: time.Minute, Kinds: all},
		"make campaign SEED=7 LENGTH=1m0s STORE=etcd":            {Store: world.Etcd, Seed: 7, Length: time.Minute, Kinds: kindsOf(world.Etcd, keptAsEver)},
		"make campaign SEED=7 LENGTH=0s FAULTS=cut,disk-full":    {Store: world.PostgreSQL, Seed: 7, Length: time.Minute, Brief: true, Kinds: kinds},
		"make campaign SEED=7 LENGTH=2m30s FAULTS=cut,disk-full": {Store: world.PostgreSQL, Seed: 7, Length: round, Kinds: kinds},
	} {
		if got := replay(terms, keptAsEver); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
