package console

import (
	"bytes"
	"flag"
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/a-h/templ/generator"
	"github.com/a-h/templ/parser/v2"
)

var update = flag.Bool("update", false, "write the Go files of the pages")

// The Go files of the pages are what templ makes of *.templ. After a change: go test ./internal/console -run Generated -update.
func TestPagesAreGenerated(t *testing.T) {
	pages, err := filepath.Glob("*.templ")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, name := range pages {
		page, err := parser.Parse(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var source bytes.Buffer
		if _, err := generator.Generate(page, &source, generator.WithFileName(name)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want, err := format.Source(source.Bytes())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		file := strings.TrimSuffix(name, ".templ") + "_templ.go"
		if *update {
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := os.ReadFile(file); !bytes.Equal(got, want) {
			t.Errorf("%s is not what templ makes of %s: go test ./internal/console -run Generated -update", file, name)
		}
	}
}
