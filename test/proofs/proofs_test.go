// Package proofs keeps docs/proofs.md, which says which tests stand for which rule. A test names its rules
// in a line above it, in any language:
//
//	// Proves: promise 5, trap late statement
//
// Above the first import or the package clause, the line speaks for all tests of the file; in a doc.go, for
// those of the folder. A rule is the first column of a table of the page. Its last column is written by
// `go test ./test/proofs -update`.
package proofs

import (
	"cmp"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	top  = "../.."
	page = top + "/docs/proofs.md"
)

var update = flag.Bool("update", false, "write the tests in docs/proofs.md anew")

// proof is a test, and the rules that it stands for. A proof without a name speaks for all tests of its folder or file.
type proof struct {
	place, name string
	rules       []string
}

var (
	proves = regexp.MustCompile(`^\s*(?://|#|/\*\*) Proves: ([^*]+?)(?: \*/)?$`)
	row    = regexp.MustCompile(`^\| ([^|]+) \| ([^|]+) \|(?: ([^|]+) \|)?$`)

	// What follows the line in a file of each kind: the name of a test, or, without a name, the head of the file.
	follows = map[string]*regexp.Regexp{
		".go":   regexp.MustCompile(`^func (\w+)\(|^package `),
		".py":   regexp.MustCompile(`^\s*(?:async )?def (\w+)\(|^from |^import `),
		".java": regexp.MustCompile(`\bvoid (\w+)\(|^package `),
		".php":  regexp.MustCompile(`\bpublic function (test\w+)\(|^final class `),
		".rb":   regexp.MustCompile(`^\s*def (test_\w+)|^class `),
		".rs":   regexp.MustCompile(`^(?:async )?fn (\w+)\(|^mod `),
		".ts":   regexp.MustCompile(`\btest\(.*?("[^"]+")|^import `),
	}
)

// TestProofs: the page has exactly the tests that name each of its rules, and each rule has one.
func TestProofs(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	byRule := map[string][]proof{}
	for _, p := range proofs(t) {
		for _, rule := range p.rules {
			byRule[rule] = append(byRule[rule], p)
		}
	}
	lines := strings.Split(string(text), "\n")
	listed := map[string]bool{}
	for i, line := range lines {
		m := row.FindStringSubmatch(line)
		if len(m) == 0 || m[1] == "rule" || strings.HasPrefix(m[1], "--") {
			continue
		}
		if listed[m[1]] {
			t.Errorf("docs/proofs.md has the rule %q twice", m[1])
		}
		listed[m[1]] = true
		if len(byRule[m[1]]) == 0 {
			t.Errorf("no test says that it proves %q of docs/proofs.md", m[1])
		}
		lines[i] = "| " + m[1] + " | " + m[2] + " | " + cell(byRule[m[1]]) + " |"
	}
	for rule, ps := range byRule {
		if !listed[rule] {
			t.Errorf("%s %s proves %q, which is no rule of docs/proofs.md", ps[0].place, ps[0].name, rule)
		}
	}
	if t.Failed() {
		return
	}
	want := strings.Join(lines, "\n")
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Error("docs/proofs.md is not of these tests: go test ./test/proofs -update")
	}
}

// TestEachPromiseHasRow: each numbered promise and each assumption of docs/guarantees.md is a rule of the page, under the same name.
func TestEachPromiseHasRow(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	guarantees, err := os.ReadFile(top + "/docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	promised := regexp.MustCompile(`(?m)^(\d+)\. \*\*(.+?)\*\*`).FindAllStringSubmatch(string(guarantees), -1)
	assumed := regexp.MustCompile(`(?m)^- \*\*(A\d+)\. (.+?)\*\*`).FindAllStringSubmatch(string(guarantees), -1)
	if len(promised) == 0 || len(assumed) == 0 {
		t.Fatalf("docs/guarantees.md has %d promises and %d assumptions", len(promised), len(assumed))
	}
	for _, p := range promised {
		if want := "| promise " + p[1] + " | " + strings.TrimRight(p[2], ".") + " |"; !strings.Contains(string(text), want) {
			t.Errorf("docs/proofs.md has no row %s", want)
		}
	}
	for _, a := range assumed {
		if want := "| " + a[1] + " | " + strings.TrimRight(a[2], ".") + " |"; !strings.Contains(string(text), want) {
			t.Errorf("docs/proofs.md has no row %s", want)
		}
	}
}

// TestEachThreatHasRow: each threat of SECURITY.md is a rule of the page.
func TestEachThreatHasRow(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	security, err := os.ReadFile(top + "/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	threats := regexp.MustCompile(`(?m)^\| \*\*(.+?)\*\* \|`).FindAllStringSubmatch(string(security), -1)
	if len(threats) != strings.Count(string(text), "\n| threat ") {
		t.Errorf("SECURITY.md has %d threats, docs/proofs.md has others", len(threats))
	}
	for _, threat := range threats {
		if !strings.Contains(string(text), "\n| threat "+threat[1]+" |") {
			t.Errorf("docs/proofs.md has no row %q", "threat "+threat[1])
		}
	}
}

// TestMutantsNameRules: a mutant breaks rules of the page.
func TestMutantsNameRules(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	patches, err := filepath.Glob(top + "/test/mutants/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("there are no patches: %v", err)
	}
	for _, path := range patches {
		patch, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, from, _ := strings.Cut(string(patch), "# From: ")
		from, _, _ = strings.Cut(from, "\n")
		for rule := range strings.SplitSeq(from, ", ") {
			if !strings.Contains(string(text), "\n| "+rule+" | ") {
				t.Errorf("%s is from %q, which is no rule of docs/proofs.md", filepath.Base(path), rule)
			}
		}
	}
}

// TestDocumentsNameTests: a test that a document names exists.
func TestDocumentsNameTests(t *testing.T) {
	tests := map[string]bool{}
	documents := map[string][]string{}
	walk(t, func(path, text string) {
		switch {
		case strings.HasSuffix(path, "_test.go"):
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(text, -1) {
				tests[m[1]] = true
			}
		case strings.HasSuffix(path, ".md"):
			for _, m := range regexp.MustCompile(`(?:^|[^\\\w])(Test[A-Z]\w+)`).FindAllStringSubmatch(text, -1) { // not PHPUnit\Framework\TestCase
				documents[path] = append(documents[path], m[1])
			}
		}
	})
	for path, named := range documents {
		for _, name := range named {
			if !tests[name] {
				t.Errorf("%s: there is no %s", path, name)
			}
		}
	}
}

// proofs returns what the tests say, in the order of their folders, files and lines.
func proofs(t *testing.T) (found []proof) {
	t.Helper()
	walk(t, func(path, text string) {
		kind := filepath.Ext(path)
		if follows[kind] == nil || !strings.Contains(text, " Proves: ") || strings.HasPrefix(path, "test/proofs/") {
			return
		}
		var rules []string
		for line := range strings.SplitSeq(text, "\n") {
			if m := proves.FindStringSubmatch(line); m != nil {
				rules = append(rules, strings.Split(m[1], ", ")...)
				continue
			}
			m := follows[kind].FindStringSubmatch(line)
			if m == nil || rules == nil {
				continue
			}
			p := proof{place: path, name: m[1], rules: rules}
			switch {
			case kind == ".go" && p.name == "" && filepath.Base(path) != "doc.go":
				p = proof{place: filepath.Dir(path), name: filepath.Base(path), rules: rules}
			case kind == ".go":
				p.place = filepath.Dir(path)
			}
			found = append(found, p)
			rules = nil
		}
		if rules != nil {
			t.Errorf("%s: no test follows %q", path, rules)
		}
	})
	slices.SortStableFunc(found, func(a, b proof) int { return cmp.Compare(a.place, b.place) })
	return found
}

// cell lists tests by their folders. A test is not listed if its whole folder is.
func cell(ps []proof) string {
	whole := map[string]bool{}
	for _, p := range ps {
		whole[p.place] = whole[p.place] || p.name == ""
	}
	ps = slices.DeleteFunc(slices.Clone(ps), func(p proof) bool { return whole[p.place] && p.name != "" })
	var b strings.Builder
	for i, p := range ps {
		switch {
		case i > 0 && ps[i-1].place == p.place:
			b.WriteString(", " + p.name)
			continue
		case i > 0:
			b.WriteString("; ")
		}
		b.WriteString(strings.TrimRight("`"+p.place+"` "+p.name, " "))
	}
	return b.String()
}

// walk reads each text of the repository that may be a test or a document.
func walk(t *testing.T, read func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != top && (name[0] == '.' && name != ".github" || slices.Contains([]string{"node_modules", "dist", "target", "build", "venv"}, name)) {
			return filepath.SkipDir
		}
		if d.IsDir() || follows[filepath.Ext(path)] == nil && filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(top, path)
		read(filepath.ToSlash(relative), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
