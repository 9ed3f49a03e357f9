package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Released programs have no profiler: neither the tags of `make build` nor those of the
// image bring its file along.
func TestProfilesAreNotReleased(t *testing.T) {
	tags := regexp.MustCompile(`-tags[= ](\S+)`)
	top := filepath.Join("..", "..")
	for _, file := range []string{"Makefile", "Dockerfile"} {
		text, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		found := tags.FindAllSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("%s builds without any tags: is it still what builds the binary?", file)
		}
		for _, match := range found {
			if files := filesWith(t, string(match[1])); slices.Contains(files, "profile.go") {
				t.Errorf("%s builds with %s, which brings profile.go along: %s", file, match[1], files)
			}
		}
	}
	if files := filesWith(t, "profile"); !slices.Contains(files, "profile.go") || slices.Contains(files, "profile_not.go") {
		t.Errorf("the tag profile brings %s", files)
	}
}

// filesWith are the files of this package that are built with some tags.
func filesWith(t *testing.T, tags string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-tags", tags, "-f", "{{join .GoFiles \" \"}}", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	return strings.Fields(string(out))
}
