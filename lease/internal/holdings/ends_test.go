package holdings

import (
	"testing"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// The last grants are remembered, the oldest forgotten first; what is added again is
// remembered as it ended last.
func TestRecentEndsAreForgottenByAge(t *testing.T) {
	t.Parallel()
	e := newRecentEnds()
	ref := func(i int) grantRef { return grantRef{"k", int64(i)} }
	for i := range 5 * Remembered / 2 {
		e.add(ref(i), End{})
		for _, age := range []int{0, 1, 10_000 - 1} { // of so many, says the contract
			if _, ok := e.get(ref(i - age)); !ok && i >= age {
				t.Fatalf("after %d grants, the one %d before is forgotten", i, age)
			}
		}
		if _, ok := e.get(ref(i - 3*Remembered/2)); ok {
			t.Fatalf("after %d grants, the one %d before is remembered", i, 3*Remembered/2)
		}
	}
	last := 5*Remembered/2 - 1
	for _, i := range []int{last, last - Remembered + 1} {
		e.add(ref(i), End{Lost: types.LostExpired})
		if end, ok := e.get(ref(i)); !ok || end.Lost != types.LostExpired {
			t.Errorf("what was added again: %+v %v", end, ok)
		}
	}
}

// TestSettledReleaseIsNotKept: once there is no further try of a release, only what became of the grant is
// remembered. It is a loss if the store did not confirm the release.
func TestSettledReleaseIsNotKept(t *testing.T) {
	t.Parallel()
	e := newRecentEnds()
	for i, known := range e.ages {
		ref := grantRef{"k", int64(i)}
		known[ref] = End{Release: &Release{}}
		e.releaseSettled(ref, "")
		if end, ok := e.get(ref); !ok || end != (End{}) {
			t.Errorf("remembered as %+v, %v", end, ok)
		}
		known[ref] = End{Release: &Release{}}
		e.releaseSettled(ref, types.LostStore)
		if end, ok := e.get(ref); !ok || end != (End{Lost: types.LostStore}) {
			t.Errorf("an unconfirmed one is remembered as %+v, %v", end, ok)
		}
	}
}
