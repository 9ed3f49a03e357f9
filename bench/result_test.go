package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestLossesAreNamed(t *testing.T) {
	before := []scored{
		{ID: "P1", What: "rate", Score: 1},
		{ID: "P1", What: "steady", Score: 1},
		{ID: "P1", What: "better", Score: 1},
		{ID: "P3", What: "time", Score: 2, LessIsBetter: true},
		{ID: "P3", What: "size", Score: 2, LessIsBetter: true},
		{ID: "P3", What: "renamed", Score: 1},
		{ID: "P9", What: "not measured today", Score: 1},
	}
	now := []scored{
		{ID: "P1", What: "rate", Score: 0.74},
		{ID: "P1", What: "steady", Score: 0.76},
		{ID: "P1", What: "better", Score: 9},
		{ID: "P3", What: "time", Score: 2.51, LessIsBetter: true},
		{ID: "P3", What: "size", Score: 2.49, LessIsBetter: true},
		{ID: "P3", What: "new", Score: 1},
	}
	err := compare(before, now)
	if err == nil {
		t.Fatal("no loss was found")
	}
	const want = "P1, rate: 0.74, and was 1\nP3, time: 2.51, and was 2\nP3, renamed: was measured before, and is not now"
	if err.Error() != want {
		t.Fatalf("%s\nwant\n%s", err, want)
	}
	if err := compare(before, before); err != nil {
		t.Fatalf("the same again: %v", err)
	}
}

func TestScoresAreKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	results := []result{{id: "P1", what: "a ratio", score: 0.5}, {id: "P7", what: "a time without a peer"}, {id: "P8", what: "a size", score: 20, less: true}}
	if err := writeScores(path, results); err != nil {
		t.Fatal(err)
	}
	got, err := readScores(path)
	want := []scored{{ID: "P1", What: "a ratio", Score: 0.5}, {ID: "P8", What: "a size", Score: 20, LessIsBetter: true}}
	if err != nil || len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Fatalf("%v, %v; want %v", got, err, want)
	}
	if _, err := readScores(path + ".missing"); err == nil || !strings.Contains(err.Error(), "-write makes it") {
		t.Fatalf("nothing to compare with: %v", err)
	}
}

func TestGoalsAreReachedOrNot(t *testing.T) {
	for _, c := range []struct {
		r       result
		goal    string
		reached bool
	}{
		{result{score: 0.70}, "at least 0.70", true},
		{result{score: 0.69}, "at least 0.70", false},
		{result{score: 0.70, less: true}, "at most 0.70", true},
		{result{score: 0.71, less: true}, "at most 0.70", false},
	} {
		if got := c.r.wants(0.70); got.goal != c.goal || got.reached != c.reached {
			t.Errorf("%+v: %q, reached: %v; want %q, %v", c.r, got.goal, got.reached, c.goal, c.reached)
		}
	}
}
