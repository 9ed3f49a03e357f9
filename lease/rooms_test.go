package lease

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestRooms: each room imports the rooms that docs/how-it-works.md says, and only rooms below it there.
func TestRooms(t *testing.T) {
	text, err := os.ReadFile("../docs/how-it-works.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| room | what it owns | imports |")
	table, _, _ = strings.Cut(table, "\n\n")
	var rooms []string
	listed := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| .* \\| ?(.*) ?\\|$").FindAllStringSubmatch(table, -1) {
		rooms = append(rooms, row[1])
		listed[row[1]] = strings.Fields(row[2])
	}
	folders, err := filepath.Glob("internal/*")
	folders = slices.DeleteFunc(folders, func(f string) bool { return f == "internal/roomtest" }) // for their tests
	if err != nil || len(folders) != len(rooms) {
		t.Errorf("the document has %d rooms, the tree %d: %v", len(rooms), len(folders), err)
	}
	for i, room := range rooms {
		imports := importsOf(t, room)
		if !slices.Equal(imports, listed[room]) {
			t.Errorf("%s imports %v, the document says %v", room, imports, listed[room])
		}
		for _, other := range imports {
			if !slices.Contains(rooms[i+1:], other) {
				t.Errorf("%s imports %s, which is not below it", room, other)
			}
		}
	}
}

// importsOf are the rooms that a room imports.
func importsOf(t *testing.T, room string) (imports []string) {
	t.Helper()
	const prefix = `"github.com/locksidecar/locksidecar/lease/internal/`
	files, err := filepath.Glob(filepath.Join("internal", room, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of %s: %v", room, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range parsed.Imports {
			if other, is := strings.CutPrefix(i.Path.Value, prefix); is {
				imports = append(imports, strings.Trim(other, `"`))
			}
		}
	}
	slices.Sort(imports)
	return slices.Compact(imports)
}
