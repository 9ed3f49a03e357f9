package load

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// TestUnchangedLines are not noted again within a second, but the next note says up to when they were seen.
func TestUnchangedLines(t *testing.T) {
	rec := history.NewRecorder("world", nil)
	o := &observer{rec: rec, noted: make(map[string]history.Op)}
	look := func(ms int64, waiters ...string) {
		line := history.Op{Kind: history.Line, Key: "k", Call: ms * int64(time.Millisecond), Return: ms*int64(time.Millisecond) + 1}
		for i, id := range waiters {
			line.Line = append(line.Line, history.Place{Number: int64(i), ID: id})
		}
		o.note(line)
	}
	look(1, "a", "b")
	look(21, "a", "b")
	look(41, "a", "b")
	look(61, "b")
	look(81, "b")
	look(1062, "b")
	got, err := rec.Ops()
	if err != nil || len(got) != 3 {
		t.Fatalf("%d notes, want 3: %v, %v", len(got), got, err)
	}
	for i, want := range []struct{ call, before int64 }{{1, 0}, {61, 41}, {1062, 81}} {
		if got[i].Call != want.call*int64(time.Millisecond) || got[i].Before != want.before*int64(time.Millisecond) {
			t.Errorf("note %d is of %d after a look at %d, want %+v", i, got[i].Call, got[i].Before, want)
		}
	}
}
