package observe

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestImports: in lease only this package meets OpenTelemetry, and it knows no other part of
// lease. Config of lease names the tracer and the counters that its caller has made.
func TestImports(t *testing.T) {
	const module = "github.com/locksidecar/locksidecar/"
	for pattern, forbidden := range map[string][]string{
		"*.go":       {module + "lease"},
		"../*/*.go":  {"go.opentelemetry.io/", module + "internal/metrics", module + "internal/tracing"},
		"../../*.go": {"go.opentelemetry.io/", module + "internal/metrics", module + "internal/tracing"},
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if filepath.Dir(file) == "../observe" || strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range parsed.Imports {
				for _, prefix := range forbidden {
					if strings.HasPrefix(strings.Trim(i.Path.Value, `"`), prefix) {
						t.Errorf("%s imports %s", file, i.Path.Value)
					}
				}
			}
		}
	}
}
