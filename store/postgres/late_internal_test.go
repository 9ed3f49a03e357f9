package postgres

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// An attempt that was noted before an overflow, and again after the clock was set back, keeps its later limit.
func TestLimitsOutliveAnOverflow(t *testing.T) {
	t.Parallel()
	var l late
	id := uuid.New()
	one := func(int) store.AttemptID { return id }
	now := time.Now()
	l.note(1, one, now.Add(time.Minute))
	l.note(lateMax, func(int) store.AttemptID { return uuid.New() }, now)
	l.note(1, one, now.Add(time.Second))
	if !l.canFollow(id, now.Add(30*time.Second)) {
		t.Error("a statement that has half a minute left cannot follow")
	}
	if l.canFollow(id, now.Add(time.Minute)) {
		t.Error("a statement can follow after its limit")
	}
}
