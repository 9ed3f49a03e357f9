package image

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/subrequests/lint"
	"github.com/opencontainers/go-digest"
)

// TestDockerfile: docker's own checks (`docker build --check`) find nothing.
// Proves: threat build inputs
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	results := check(t, text)
	for _, warning := range results.Warnings {
		t.Errorf("Dockerfile: %s: %s (%v)", warning.RuleName, warning.Detail, warning.Location)
	}
	if results.Error != nil {
		t.Errorf("Dockerfile: %s", results.Error.Message)
	}
	if bad := check(t, append(text, "\nFROM scratch as X\nENV TOKEN $UNKNOWN\n"...)); len(bad.Warnings) < 3 {
		t.Errorf("of a bad Dockerfile, the checks find only %d: do they still work?", len(bad.Warnings))
	}
}

// TestBaseImageHasARegistry: buildah and podman look nowhere for a name without one, unless
// somebody has configured them; Debian has not.
func TestBaseImageHasARegistry(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if name, ok := strings.CutPrefix(line, "ARG GO_IMAGE="); ok {
			if registry, _, found := strings.Cut(name, "/"); !found || !strings.Contains(registry, ".") {
				t.Errorf("%s: write docker.io/library/ in front of it", name)
			}
			return
		}
	}
	t.Error("no ARG GO_IMAGE in the Dockerfile")
}

func check(t *testing.T, text []byte) *lint.LintResults {
	t.Helper()
	source := llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", text)
	source.Definition = &llb.Definition{} // where a builder would find the text; nobody asks
	results, err := dockerfile2llb.DockerfileLint(t.Context(), text, dockerfile2llb.ConvertOpt{MetaResolver: noRegistry{}, SourceMap: source})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// noRegistry knows no image's configuration: a check need not ask for it.
type noRegistry struct{}

func (noRegistry) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	config := []byte(`{"architecture":"amd64","os":"linux"}`)
	return ref, digest.FromBytes(config), config, nil
}
