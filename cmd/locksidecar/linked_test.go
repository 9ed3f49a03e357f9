package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// The released program contains no tools of the tests and benchmarks, and serves no profiles.
func TestToolsAreNotReleased(t *testing.T) {
	tools := regexp.MustCompile(`^(testing|net/http/pprof|.*/locksidecar/(bench|e2e|test|internal/testing|store/storetest)(/.*)?)$`)
	linked := func(of string) (found []string) {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", of).CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, out)
		}
		for name := range strings.FieldsSeq(string(out)) {
			if tools.MatchString(name) {
				found = append(found, name)
			}
		}
		return found
	}
	if found := linked("."); len(found) > 0 {
		t.Errorf("the program contains %s", found)
	}
	if found := linked("../../bench/profiled"); len(found) != 1 {
		t.Errorf("the profiled program contains %s, want itself alone", found)
	}
}
