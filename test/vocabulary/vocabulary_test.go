// Package vocabulary keeps the words of the clients the same: clients/vocabulary.yaml.
package vocabulary

import (
	"cmp"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const top = "../../"

// other is a name that is not the word in the form of its language, `-` for none, or the word with another meaning.
type other struct {
	Name  string `yaml:"name"`
	Means string `yaml:"means"`
	Why   string `yaml:"why"`
}

// none is the name of what a language, the commands or the API do not have.
const none = "-"

// UnmarshalYAML also takes a name alone.
func (o *other) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return node.Decode(&o.Name)
	}
	type plain other
	return node.Decode((*plain)(o))
}

// justified: a name that is not wanted, and another meaning, have a reason.
func (o *other) justified(want string) bool {
	differs := o.Name != "" && o.Name != want || o.Means != ""
	return differs == (o.Why != "")
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
	CLI    *other `yaml:"cli"`
	HTTP   *other `yaml:"http"`
}

type file struct {
	Arguments map[string]arguments `yaml:"arguments"`
	Calls     map[string]word      `yaml:"calls"`
	Held      map[string]word      `yaml:"held"`
	Options   map[string]word      `yaml:"options"`
	Errors    map[string]word      `yaml:"errors"`
}

// arguments are the order of a call's arguments.
type arguments struct {
	Order string `yaml:"order"`
	Why   string `yaml:"why"`
}

// exports are the names that a language has, by the group of the file.
type exports map[string][]string

// read returns the file.
func read(t *testing.T) (words file, groups map[string]map[string]word) {
	t.Helper()
	text, err := os.ReadFile(top + "clients/vocabulary.yaml")
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&words); err != nil {
		t.Fatal(err)
	}
	return words, map[string]map[string]word{"calls": words.Calls, "held": words.Held, "options": words.Options, "errors": words.Errors}
}

// TestVocabulary: each word has its name in each client. Another name, another meaning, or none has its reason.
func TestVocabulary(t *testing.T) {
	_, groups := read(t)
	for _, language := range languages {
		has := language.exports(t)
		for group, all := range groups {
			if len(has[group]) == 0 || len(all) == 0 {
				t.Fatalf("%s: nothing is read of %s", language.name, group)
			}
			for name, w := range all {
				want := language.form(group, name)
				if o := language.other(&w); o != nil {
					if o.Name == want || o.Name == "" && o.Means == "" || !o.justified(want) {
						t.Errorf("%s, %s: %+v needs a reason, and must differ", language.name, name, *o)
					}
					want = cmp.Or(o.Name, want)
				}
				if want != none && !slices.Contains(has[group], want) {
					t.Errorf("%s has no %s, for the word %s of %s", language.name, want, name, group)
				}
			}
		}
	}
}

// TestCommandsAndAPI: what the commands and the API have for each word is there, and what they do not have has its reason.
func TestCommandsAndAPI(t *testing.T) {
	_, groups := read(t)
	commands := found(t, `(?m)^\t\tUse:\s+"([a-z]+)`, "internal/cli/*.go")
	for _, flag := range found(t, `\b(?:f|flags|cmd\.Flags\(\))\.\w+\((?:&[\w.]+, )?"([a-z-]+)",`, "internal/cli/*.go") {
		commands = append(commands, "--"+flag)
	}
	document := found(t, `(?m)operationId: (\w+)|code: \{ const: (\w+) \}|^      name: (Cache-Control)$`, "api/openapi.yaml")
	for group, all := range groups {
		for name, w := range all {
			if group != "errors" { // a command has an exit code for many errors
				there(t, group+", "+name+", cli", w.CLI, commands)
			}
			there(t, group+", "+name+", http", w.HTTP, document)
		}
	}
}

// there checks a cell: each of its words is there, or its reason is.
func there(t *testing.T, at string, o *other, has []string) {
	t.Helper()
	if o == nil || o.Name == "" {
		t.Errorf("%s: there is nothing; write `-` with the reason if there is none", at)
		return
	}
	want := o.Name
	if want == none {
		want = ""
	}
	if !o.justified(want) {
		t.Errorf("%s: %+v needs a reason if it means something else or is none, and only then", at, *o)
	}
	for part := range strings.FieldsSeq(o.Name) {
		if part != none && !slices.Contains(has, part) {
			t.Errorf("%s: there is no %q", at, part)
		}
	}
}

// signatures are where a language has its calls with a function, and which of their arguments are the options and the function.
type signatures struct {
	pattern           string // its group is the arguments
	options, function string
	files             []string
}

var calls = map[string]signatures{
	"python": {`(?s)def (?:once|lead)\(\s*self,\s*(.*?)\) -> T`, `\*`, `\b(?:function|on_lead)\b`, []string{"clients/python/src/locksidecar/_sync.py", "clients/python/src/locksidecar/_async.py"}},
	"node":   {`(?m)^  (?:once|lead|lock)<T>\((.*\boptions\b.*)\): Promise`, `\boptions\b`, `\brun\b`, []string{"clients/node/src/client.ts"}},
	"java":   {`(?s)\b(?:once|lead)\(\s*([^)]*\bLockOptions options\b[^)]*)\)`, `\boptions\b`, `\b(?:work|task)\b`, []string{"clients/java/client/src/main/java/io/github/locksidecar/LockClient.java"}},
	"ruby":   {`(?m)^    def (?:once|lead|lock): (.*)$`, `\?\w+:`, `\{`, []string{"clients/ruby/sig/locksidecar.rbs"}},
	"go":     {`(?m)^func (?:Once\[T any\]|\(c \*Client\) (?:Do|Lead))\((.*)\) `, `\bopts\b`, `\brun\b`, []string{"clients/go/client.go", "clients/go/lead.go", "clients/go/once.go"}},
	"php":    {`(?s)public function (?:once|lead|withLock)\((.*?)\): mixed`, `\bmixed\b`, `\$work\b`, []string{"clients/php/src/Client.php"}},
	"rust":   {`(?m)^    pub async fn (?:once|lead|lock)<[^(]*>\(&self, (.*\bkey\b.*)\) ->`, `\boptions\b`, `\bwork\b`, []string{"clients/rust/src/work.rs"}},
}

// order says in which order the arguments of a call come.
func (s *signatures) order(arguments string) string {
	patterns := map[string]string{"ctx": `^ctx\b`, "key": `\bkey\b`, "options": s.options, "function": s.function}
	at := map[string]int{}
	var names []string
	for name, pattern := range patterns {
		if place := regexp.MustCompile(pattern).FindStringIndex(arguments); place != nil {
			at[name] = place[0]
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return at[a] - at[b] })
	return strings.Join(names, ", ")
}

// TestArguments: calls with a function have their arguments in the order that the file gives with its reason.
func TestArguments(t *testing.T) {
	words, _ := read(t)
	for language, s := range calls {
		a := words.Arguments[language]
		if a.Why == "" {
			t.Errorf("%s: %+v has no reason", language, a)
		}
		all := found(t, s.pattern, s.files...)
		if len(all) < 2 { // once and lead
			t.Errorf("%s: only %q", language, all)
		}
		for _, arguments := range all {
			if order := s.order(arguments); order != a.Order {
				t.Errorf("%s: %s: these are %q, want %q", language, arguments, order, a.Order)
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
	{"Python for threads", pythonExports("_sync", "Client", "Lock"), func(_, name string) string { return name }, func(w *word) *other { return w.Python }},
	{"Python for asyncio", pythonExports("_async", "AsyncClient", "AsyncLock"), func(_, name string) string { return name }, func(w *word) *other { return w.Python }},
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

// pythonNames prints the public names of Python's client: python3 -c pythonNames FOLDER HALF CLIENT LOCK. It reads the code by Python's own parser.
const pythonNames = `
import ast, json, sys
from pathlib import Path

folder, half, client, lock = Path(sys.argv[1]), *sys.argv[2:]

def body(file, name):
    return next(one.body for one in ast.parse((folder / file).read_text()).body if isinstance(one, ast.ClassDef) and one.name == name)

def functions(file, name):
    return [one for one in body(file, name) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]

def attributes(file, name):
    annotated = [one.target.id for one in body(file, name) if isinstance(one, ast.AnnAssign)]
    init = [node for one in functions(file, name) if one.name == "__init__" for node in ast.walk(one) if isinstance(node, ast.Attribute)]
    return annotated + [one.attr for one in init if isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self"]

errors = ast.parse((folder / "errors.py").read_text()).body
listed = next(ast.literal_eval(one.value) for one in errors if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__")
calls = functions(half + ".py", client)
held = [("_lock.py", "BaseLock"), (half + "_lock.py", lock)]
names = {
    "calls": [one.name for one in calls],
    "held": [name for at in held for name in [one.name for one in functions(*at)] + attributes(*at)],
    "options": [argument.arg for one in calls if one.name == "get" for argument in one.args.kwonlyargs],
    "errors": [one.name for one in errors if isinstance(one, ast.ClassDef) and one.name in listed],
}
json.dump({group: [name for name in all if not name.startswith("_")] for group, all in names.items()}, sys.stdout)
`

func pythonExports(half, client, lock string) func(t *testing.T) exports {
	return func(t *testing.T) (has exports) {
		t.Helper()
		said, err := exec.CommandContext(t.Context(), "python3", "-c", pythonNames, top+"clients/python/src/locksidecar", half, client, lock).Output()
		if err != nil {
			t.Fatalf("python3: %v", err)
		}
		if err := json.Unmarshal(said, &has); err != nil {
			t.Fatal(err)
		}
		return has
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
