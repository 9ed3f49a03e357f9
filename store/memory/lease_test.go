package memory

import (
	"testing"
	"time"
)

// A release and a burial of a hold may meet between the judgement of the claim and the
// end of the grant. Whoever comes second must find that the lease stands, or the key
// would be free before its hold is over.
func TestAHoldStandsWhoeverEndsItFirst(t *testing.T) {
	now := moment{wall: time.Now(), at: 1}
	l := &lease{renewed: true}
	l.expires.Store(int64(time.Minute))
	if !l.keep("k", now, time.Second) {
		t.Fatal("not kept")
	}
	if died, stands := l.reap(now, true); died || !stands {
		t.Fatalf("buried: died %v, stands %v", died, stands)
	}
	if !l.stand(now) {
		t.Error("a release that comes second would free the key")
	}
	if died, stands := l.reap(now, true); died || stands {
		t.Errorf("buried again: died %v, stands %v", died, stands)
	}
	end := moment{at: now.at + int64(time.Second)}
	if l.stand(end) {
		t.Error("stands after its hold")
	}
	if died, _ := l.reap(end, false); !died {
		t.Error("not buried after its hold")
	}
}
