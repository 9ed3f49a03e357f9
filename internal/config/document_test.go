package config

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/configuration.md anew")

// docs/configuration.md has the table of variables. With -update the test writes it.
func TestTheTableOfVariables(t *testing.T) {
	const document, head = "../../docs/configuration.md", "| variable | default | allowed | meaning |\n|---|---|---|---|\n"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), head)
	_, after, ended := strings.Cut(rest, "\n\n")
	if !ok || !ended {
		t.Fatalf("docs/configuration.md has no table that begins with\n%s", head)
	}
	link := regexp.MustCompile(`docs/[\w-]+\.md(#[\w-]+)?`)
	var rows []string
	for _, v := range new(loader).table() {
		standard, described := strings.CutPrefix(v.standard, "(")
		if described {
			standard = strings.TrimSuffix(standard, ")")
		} else if standard != "" {
			standard = "`" + standard + "`"
		}
		help := link.ReplaceAllStringFunc(v.help, func(to string) string {
			name, _, _ := strings.Cut(to, "#")
			return "[" + name + "](" + strings.TrimPrefix(to, "docs/") + ")"
		})
		rows = append(rows, "| `"+v.name+"` | "+standard+" | "+v.allowed+" | "+help+" |")
	}
	want := before + head + strings.Join(rows, "\n") + "\n\n" + after
	switch {
	case want == string(text):
	case *update:
		if err := os.WriteFile(document, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("the table of docs/configuration.md is not that of the program: go test ./internal/config -update")
	}
}

// --help has all variables, in lines that a terminal shows.
func TestHelp(t *testing.T) {
	help := Help()
	for _, name := range Variables() {
		if !strings.Contains(help, "\n  "+name+" ") && !strings.HasPrefix(help, "  "+name+" ") && !strings.Contains(help, "\n  "+name+"\n") {
			t.Errorf("no %s in\n%s", name, help)
		}
	}
	for line := range strings.Lines(help) {
		if len(line) > 100 || strings.Contains(line, "`") {
			t.Errorf("a line of the help: %q", line)
		}
	}
}
