package image

import (
	"strings"
	"testing"
)

// TestReleaseHasAPinnedBase builds nothing: a release is refused if its base has no digest.
// Proves: threat build inputs
func TestReleaseHasAPinnedBase(t *testing.T) {
	digest := "docker.io/library/golang:1.26-bookworm@sha256:" + strings.Repeat("0", 64)
	for _, test := range []struct {
		version, base string
		refused       bool
	}{
		{"v1.2.3", "", true},
		{"v1.2.3", "docker.io/library/golang:1.26-bookworm", true},
		{"v1.2.3", digest[:len(digest)-1], true},
		{"v1.2.3-rc.1", "", true},
		{"v1.2.3", digest, false},
		{"v1.2.3-dirty", "", false},
		{"v1.2.3-4-gabcdef0", "", false},
		{"abcdef0", "", false},
	} {
		out, err := inRepository("make", "image", "BUILDER=true", "VERSION="+test.version, "GO_IMAGE="+test.base).CombinedOutput()
		said := strings.Contains(string(out), test.version+" is a release: GO_IMAGE is '"+test.base+"'")
		if refused := err != nil; refused != test.refused || said != test.refused {
			t.Errorf("%s from %q: %v\n%s", test.version, test.base, err, out)
		}
	}
}
