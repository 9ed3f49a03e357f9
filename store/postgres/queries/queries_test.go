package queries

import (
	"maps"
	"testing"
	"testing/fstest"
)

func TestParse(t *testing.T) {
	folder := fstest.MapFS{
		"a.sql": {Data: []byte("-- name: one\n-- Says one.\n-- $1 what\nSELECT 1\nFROM a\n\n-- name: two\nSELECT 2\n")},
		"b.sql": {Data: []byte("-- name: three\nSELECT 3 FOR UPDATE SKIP LOCKED\n\n-- name: four\n-- Waits.\n-- waits: three\n")},
	}
	all, err := parse(folder)
	if want := map[string]string{"one": "SELECT 1\nFROM a", "two": "SELECT 2", "three": "SELECT 3 FOR UPDATE SKIP LOCKED", "four": "SELECT 3 FOR UPDATE"}; err != nil || !maps.Equal(all, want) {
		t.Errorf("%q, %v", all, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for what, text := range map[string]string{
		"no name":                  "SELECT 1\n",
		"a nameless one":           "SELECT 1\n\n-- name: one\nSELECT 1\n",
		"an empty name":            "-- name: \nSELECT 1\n",
		"no statement":             "-- name: one\n-- Nothing.\n",
		"a name twice":             "-- name: one\nSELECT 1\n\n-- name: one\nSELECT 1\n",
		"no statement to wait for": "-- name: one\n-- waits: there\n",
		"a further statement":      "-- name: one\n-- waits: two\nSELECT 1\n\n-- name: two\nSELECT FOR UPDATE SKIP LOCKED\n",
		"a name of two files":      "-- name: there\nSELECT 1\n",
	} {
		folder := fstest.MapFS{"a.sql": {Data: []byte("-- name: there\nSELECT 0\n")}, "b.sql": {Data: []byte(text)}}
		if all, err := parse(folder); err == nil {
			t.Errorf("%s: %q", what, all)
		}
	}
}

func TestAll(t *testing.T) {
	if all := All(); len(all) < 40 || all["reap_one"] == all["reap_many"] {
		t.Errorf("%d statements: %q", len(all), all)
	}
}
