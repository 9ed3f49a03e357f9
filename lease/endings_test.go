package lease

import "testing"

// The last grants are remembered, the oldest forgotten first; what is added again is
// remembered once, as it ended last.
func TestEndingsAreForgottenByAge(t *testing.T) {
	t.Parallel()
	e := newEndings()
	ref := func(i int) grantRef { return grantRef{"k", int64(i)} }
	const more = 3
	for i := range rememberedGrants {
		e.add(ref(i), ending{})
	}
	e.add(ref(0), ending{lost: LostExpired})
	if end, ok := e.get(ref(0)); !ok || end.lost != LostExpired {
		t.Errorf("the first of as many as may be: %+v %v", end, ok)
	}
	for i := range more {
		e.add(ref(rememberedGrants+i), ending{})
	}
	for i := range rememberedGrants + more {
		if _, ok := e.get(ref(i)); ok != (i >= more) {
			t.Errorf("grant %d remembered: %v", i, ok)
		}
	}
	if len(e.known) != rememberedGrants || len(e.order) != rememberedGrants {
		t.Errorf("%d are known, %d in order", len(e.known), len(e.order))
	}
}
