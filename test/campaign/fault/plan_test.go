package fault

import (
	"slices"
	"testing"
	"testing/quick"
	"time"

	"github.com/locksidecar/locksidecar/store/postgres/queries"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

func terms(store world.Engine, seed uint64) Terms {
	return Terms{Store: store, Seed: seed, Length: 10 * time.Minute, Kinds: Kinds(store), Sidecars: 3, Apps: 2}
}

// onEach runs a test for each store.
func onEach(t *testing.T, test func(t *testing.T, store world.Engine)) {
	t.Helper()
	for _, store := range world.Engines {
		t.Run(string(store), func(t *testing.T) { test(t, store) })
	}
}

// TestPlanFollowsFromItsSeed: that is what makes a run that failed one to repeat.
func TestPlanFollowsFromItsSeed(t *testing.T) {
	const store = world.PostgreSQL
	one, again, other := Make(terms(store, 7)), Make(terms(store, 7)), Make(terms(store, 8))
	if one.String() != again.String() {
		t.Error("one seed made two plans")
	}
	for i := range one {
		if one[i].seed != again[i].seed {
			t.Errorf("%s has another seed of its own", one[i])
		}
	}
	if one.String() == other.String() {
		t.Error("two seeds made one plan")
	}
}

// TestPlans: in order, within their length, never three at a time, nor two that strike
// the same; and now and then two.
func TestPlans(t *testing.T) {
	onEach(t, func(t *testing.T, store world.Engine) {
		both := 0
		err := quick.Check(func(seed uint64) bool {
			plan := Make(terms(store, seed))
			for i, e := range plan {
				if e.Length < e.Kind.least || e.Length > e.Kind.most || e.end() > terms(store, 0).Length || i > 0 && e.At < plan[i-1].At {
					t.Logf("%s from %s for %s", e, e.At, e.Length)
					return false
				}
				during := 1
				for _, earlier := range plan[:i] {
					if earlier.end() <= e.At {
						continue
					}
					if during++; earlier.whom() == e.whom() {
						t.Logf("at %s %s and %s", e.At, earlier, e)
						return false
					}
				}
				if during > 2 {
					t.Logf("at %s strike %d", e.At, during)
					return false
				}
				both += during - 1
			}
			return len(plan) > 50
		}, nil)
		if err != nil {
			t.Error(err)
		}
		if both < 100 {
			t.Errorf("%d times two at a time, want more", both)
		}
	})
}

// TestAllKindsStrike in what is dealt once.
func TestAllKindsStrike(t *testing.T) {
	onEach(t, func(t *testing.T, store world.Engine) {
		cards := 0
		for _, k := range Kinds(store) {
			cards += k.weight
		}
		plan := Make(terms(store, 1))
		for _, k := range Kinds(store) {
			if k.weight < 1 || !slices.ContainsFunc(plan[:cards], func(e Event) bool { return e.Kind.Name == k.Name }) {
				t.Errorf("%s does not strike among the first %d", k.Name, cards)
			}
		}
	})
}

// TestBriefPlans: each kind once, never two that strike the same at a time nor three at
// all, and as much time as it must have.
func TestBriefPlans(t *testing.T) {
	onEach(t, func(t *testing.T, store world.Engine) {
		both := 0
		err := quick.Check(func(seed uint64) bool {
			brief := terms(store, seed)
			brief.Brief = true
			plan, kinds := Make(brief), make(map[string]bool)
			for i, e := range plan {
				during := 1
				for _, earlier := range plan[:i] {
					if earlier.end() > e.At {
						both++
						if during++; earlier.whom() == e.whom() || during > 2 {
							t.Logf("at %s %s and %s, of %d", e.At, earlier, e, during)
							return false
						}
					}
				}
				if kinds[e.Kind.Name] || e.Length < e.Kind.least || e.Length > e.Kind.most || e.At < calm {
					t.Logf("%s from %s for %s", e, e.At, e.Length)
					return false
				}
				kinds[e.Kind.Name] = true
			}
			return len(kinds) == len(Kinds(store)) && plan.Length() < 70*time.Second
		}, nil)
		if err != nil {
			t.Error(err)
		}
		if both < 100 {
			t.Errorf("%d times two at a time, want more", both)
		}
	})
}

// TestKeepersAreStruck: faults of sidecars that keep keys strike only these.
func TestKeepersAreStruck(t *testing.T) {
	some := terms(world.PostgreSQL, 1)
	some.Kinds, some.Keepers = slices.Concat(some.Kinds, KeeperKinds), []int{1, 2}
	struck := make(map[string]int)
	for _, e := range Make(some) {
		if !e.Kind.keeper {
			continue
		}
		if struck[e.Kind.Name]++; !slices.Contains(some.Keepers, e.Target) {
			t.Errorf("%s", e)
		}
	}
	if len(struck) < len(KeeperKinds) {
		t.Errorf("struck: %v", struck)
	}
}

func TestFind(t *testing.T) {
	kinds, err := Find(world.PostgreSQL, []string{"cut", "disk-full"})
	if err != nil || len(kinds) != 2 || kinds[0].Name != "cut" || kinds[1].Name != "disk-full" {
		t.Errorf("found %v, %v", kinds, err)
	}
	if _, err := Find(world.PostgreSQL, []string{"cut", "flood"}); err == nil {
		t.Error("found what does not exist")
	}
	if _, err := Find(world.Etcd, []string{"disk-full"}); err == nil {
		t.Error("found a fault of another store")
	}
}

// TestStatementsExist: if a statement had another name, no fault would cut it any more.
func TestStatementsExist(t *testing.T) {
	for _, name := range statements {
		if _, ok := queries.All()[name]; !ok {
			t.Errorf("there is no statement %s", name)
		}
	}
}
