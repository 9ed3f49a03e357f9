// Package vocabulary keeps the words of the clients the same: clients/vocabulary.yaml.
package vocabulary

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const top = "../../"

// other is a name that is not the word in the form of its language.
type other struct {
	Name string `yaml:"name"`
	Why  string `yaml:"why"`
}

// word is one of the file.
type word struct {
	Does   string `yaml:"does"`
	Python *other `yaml:"python"`
	Node   *other `yaml:"node"`
	Java   *other `yaml:"java"`
	Ruby   *other `yaml:"ruby"`
	Go     *other `yaml:"go"`
	PHP    *other `yaml:"php"`
	Rust   *other `yaml:"rust"`
	CLI    string `yaml:"cli"`
	HTTP   string `yaml:"http"`
}

type file struct {
	Calls   map[string]word `yaml:"calls"`
	Held    map[string]word `yaml:"held"`
	Options map[string]word `yaml:"options"`
	Errors  map[string]word `yaml:"errors"`
}

// exports are the names that a language has, by the group of the file.
type exports map[string][]string

// TestVocabulary: each word has its name in each client, in the commands, and in the API's document.
func TestVocabulary(t *testing.T) {
	text, err := os.ReadFile(top + "clients/vocabulary.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var words file
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&words); err != nil {
		t.Fatal(err)
	}
	groups := map[string]map[string]word{"calls": words.Calls, "held": words.Held, "options": words.Options, "errors": words.Errors}
	for _, language := range languages {
		has := language.exports(t)
		for group, all := range groups {
			if len(has[group]) == 0 || len(all) == 0 {
				t.Fatalf("%s: nothing is read of %s", language.name, group)
			}
			for name, w := range all {
				want := language.form(group, name)
				if o := language.other(&w); o != nil {
					if o.Why == "" || o.Name == want {
						t.Errorf("%s, %s: %q needs a reason, and must differ", language.name, name, o.Name)
					}
					want = o.Name
				}
				if !slices.Contains(has[group], want) {
					t.Errorf("%s has no %s, for the word %s of %s", language.name, want, name, group)
				}
			}
		}
	}
	commands := found(t, `(?m)^\t\tUse:\s+"([a-z]+)`, "internal/cli/*.go")
	document := found(t, `(?m)operationId: (\w+)|code: \{ const: (\w+) \}`, "api/openapi.yaml")
	for group, all := range groups {
		for name, w := range all {
			if group == "calls" && w.CLI != "-" && !slices.Contains(commands, w.CLI) {
				t.Errorf("there is no command %q, for the word %s", w.CLI, name)
			}
			if group != "options" && w.HTTP != "-" && !slices.Contains(document, w.HTTP) {
				t.Errorf("the API has no %q, for the word %s", w.HTTP, name)
			}
		}
	}
}

// language is a client.
type language struct {
	name    string
	exports func(t *testing.T) exports
	form    func(group, name string) string
	other   func(w *word) *other
}

var languages = []language{
	{"Python", pythonExports, func(_, name string) string { return name }, func(w *word) *other { return w.Python }},
	{"Node", nodeExports, func(group, name string) string {
		if group == "errors" {
			return name + "Error"
		}
		return camel(name)
	}, func(w *word) *other { return w.Node }},
	{"Java", javaExports, func(group, name string) string {
		if group == "errors" {
			return name + "Exception"
		}
		return camel(name)
	}, func(w *word) *other { return w.Java }},
	{"Ruby", rubyExports, func(_, name string) string { return name }, func(w *word) *other { return w.Ruby }},
	{"Go", goExports, func(group, name string) string {
		if group == "errors" {
			return "Err" + name
		}
		first := camel(name)
		return strings.ToUpper(first[:1]) + first[1:]
	}, func(w *word) *other { return w.Go }},
	{"PHP", phpExports, func(group, name string) string {
		if group == "errors" {
			return name
		}
		return camel(name)
	}, func(w *word) *other { return w.PHP }},
	{"Rust", rustExports, func(_, name string) string { return name }, func(w *word) *other { return w.Rust }},
}

func camel(name string) string {
	return regexp.MustCompile(`_.`).ReplaceAllStringFunc(name, func(part string) string { return strings.ToUpper(part[1:]) })
}

// found are the groups of a pattern in files.
func found(t *testing.T, pattern string, globs ...string) (names []string) {
	t.Helper()
	for _, glob := range globs {
		paths, err := filepath.Glob(top + glob)
		if err != nil || len(paths) == 0 {
			t.Fatalf("there is no %s: %v", glob, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, matches(pattern, string(text))...)
		}
	}
	return names
}

func matches(pattern, text string) (names []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		names = append(names, slices.DeleteFunc(match[1:], func(s string) bool { return s == "" })...)
	}
	return names
}

func pythonExports(t *testing.T) exports {
	t.Helper()
	const source = "clients/python/src/locksidecar/"
	methods := `(?m)^    (?:async )?def ([a-z]\w*)\(`
	held := append(found(t, methods, source+"_async_lock.py"), found(t, `(?m)^\s+(?:self\.)?([a-z]\w*)(?:: [^=\n]+)?(?: = .*)?$`, source+"_lock.py", source+"_async_lock.py")...)
	return exports{
		"calls": found(t, methods, source+"_async.py"), "held": held, "options": found(t, `(fresh): bool`, source+"_async.py"),
		"errors": found(t, `(?m)^class (\w+)\(`, source+"errors.py"),
	}
}

func nodeExports(t *testing.T) exports {
	t.Helper()
	const source = "clients/node/src/"
	methods := `(?m)^  (?:readonly )?(?:async )?\*?(?:get )?([a-z]\w*)[(<:]`
	return exports{
		"calls": found(t, methods, source+"client.ts"), "held": found(t, methods, source+"lock.ts"),
		"options": found(t, `(fresh)\?: boolean`, source+"client.ts"),
		"errors":  append(found(t, `(?m)^export class (\w+)`, source+"errors.ts"), found(t, `(?m)^export (interface Skipped)`, source+"options.ts")...),
	}
}

func javaExports(t *testing.T) exports {
	t.Helper()
	const source = "clients/java/client/src/main/java/io/github/locksidecar/"
	methods := `(?m)^  public [^=;]*?(\w+)\(`
	calls := found(t, methods, source+"LockClient.java")
	return exports{
		"calls": calls, "held": found(t, methods, source+"HeldLock.java"), "options": calls,
		"errors": found(t, `(?m)^public (?:final |sealed |abstract )*class (\w+Exception)`, source+"*Exception.java"),
	}
}

// rubyExports reads the types, which have what is public. The client's own tests compare them with the code.
func rubyExports(t *testing.T) exports {
	t.Helper()
	const types = "clients/ruby/sig/locksidecar.rbs"
	members := func(class string) []string {
		bodies := found(t, `(?ms)^  class `+class+`$(.*?)^  end$`, types)
		return matches(`(?m)^    (?:def|attr_reader) ([a-z]\w*):`, strings.Join(bodies, ""))
	}
	return exports{
		"calls": members("Client"), "held": members("Lock"), "options": found(t, `\?(fresh): bool`, types),
		"errors": found(t, `(?m)^  class (\w+) < (?:Error|LockHeld|Unavailable)$`, types),
	}
}

func phpExports(t *testing.T) exports {
	t.Helper()
	const source = "clients/php/src/"
	methods := `(?m)^    public function (\w+)\(`
	held := append(found(t, methods, source+"Lock.php"), found(t, `(?m)^    public readonly int \$(\w+);`, source+"Lock.php")...)
	return exports{
		"calls": found(t, methods, source+"Client.php"), "held": held, "options": found(t, `bool \$(fresh) = false\): LockInfo`, source+"Client.php"),
		"errors": found(t, `(?m)^class (\w+) extends`, source+"Exception/*.php"),
	}
}

func rustExports(t *testing.T) exports {
	t.Helper()
	const source = "clients/rust/src/"
	methods := `(?m)^    pub (?:async )?fn (\w+)`
	calls := found(t, methods, source+"client.rs", source+"work.rs")
	return exports{
		"calls": calls, "held": found(t, methods, source+"lock.rs"), "options": calls,
		"errors": found(t, `(?m)^    (\w+): "`, source+"error.rs"),
	}
}

func goExports(t *testing.T) exports {
	t.Helper()
	has := exports{}
	paths, err := filepath.Glob(top + "clients/go/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, declared := range parsed.Decls {
			switch d := declared.(type) {
			case *ast.FuncDecl:
				has.function(d)
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if values, is := spec.(*ast.ValueSpec); is {
						for _, name := range values.Names {
							has["errors"] = append(has["errors"], name.Name)
						}
					}
				}
			}
		}
	}
	return has
}

func (has exports) function(d *ast.FuncDecl) {
	if d.Recv == nil {
		has["calls"] = append(has["calls"], "func "+d.Name.Name)
		has["options"] = append(has["options"], d.Name.Name)
		return
	}
	star, is := d.Recv.List[0].Type.(*ast.StarExpr)
	if !is {
		return
	}
	switch receiver, _ := star.X.(*ast.Ident); receiver.Name {
	case "Client":
		has["calls"] = append(has["calls"], d.Name.Name)
	case "Lock":
		has["held"] = append(has["held"], d.Name.Name)
	}
}
