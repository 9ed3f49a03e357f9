package store

import (
	"fmt"
	"testing"
	"time"
)

func TestTopSumsUpTheRest(t *testing.T) {
	const limit = 20
	var lines []Stat
	for i := range 25 {
		lines = append(lines, Stat{Namespace: "n", Name: fmt.Sprint("t", i), Held: int64(100 - i), Average: time.Second, Longest: time.Duration(i) * time.Minute})
	}
	first := Stat{Namespace: "n", Name: "first", Held: 1000, Expired: 2, Waiting: 3, Average: 500 * time.Millisecond, Longest: time.Hour}
	lines = append(lines, Stat{Name: Others, Held: 1, Average: 7 * time.Second}, Stat{Namespace: "n", Name: "empty", Waiting: 1}, first)
	got := Top(lines, limit)

	if len(got) != limit+1 {
		t.Fatalf("%d lines", len(got))
	}
	if got[0] != first {
		t.Errorf("first: %+v", got[0])
	}
	if last := got[limit-1]; last.Name != "t18" || last.Average != time.Second {
		t.Errorf("last with a name: %+v", last)
	}
	// t19 to t24, the empty one, and what was summed up before.
	held := int64(81 + 80 + 79 + 78 + 77 + 76 + 1)
	want := Stat{Name: Others, Held: held, Waiting: 1, Average: time.Duration(81+80+79+78+77+76+7) * time.Second / time.Duration(held), Longest: 24 * time.Minute}
	others := got[limit]
	if off := (others.Average - want.Average).Abs(); off > time.Microsecond { // of adding up
		t.Errorf("others are held for %s on average, want %s", others.Average, want.Average)
	}
	if want.Average = others.Average; others != want {
		t.Errorf("others: %+v, want %+v", others, want)
	}
	if got := Top(lines[:limit], limit); len(got) != limit || got[limit-1] != lines[limit-1] {
		t.Errorf("nothing is left over: %+v", got)
	}
}

func TestTopSumsUpEqualNames(t *testing.T) {
	got := Top([]Stat{{Namespace: "n", Name: "a", Held: 1}, {Namespace: "n", Name: "a", Held: 2}, {Namespace: "m", Name: "a", Held: 9}}, 20)
	if len(got) != 2 || got[1] != (Stat{Namespace: "n", Name: "a", Held: 3}) {
		t.Errorf("%+v", got)
	}
}
