package holdings

import "testing"

// TestEndOfARelease: a caller that asks for the end of a release after it does not wait.
func TestEndOfARelease(t *testing.T) {
	t.Parallel()
	over := func(end <-chan struct{}) bool {
		select {
		case <-end:
			return true
		default:
			return false
		}
	}
	var late, early Release
	late.endTries()
	if !over(late.settles()) {
		t.Error("not over, when asked after the end")
	}
	end := early.settles()
	if over(end) || over(early.settles()) {
		t.Error("over before the end")
	}
	early.endTries()
	if !over(end) || !over(early.settles()) {
		t.Error("not over, when asked before the end")
	}
}
