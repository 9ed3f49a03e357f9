package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const top = "../.."

// testsOf are the top-level tests of a package, or of a file of a client in another language.
func testsOf(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	pattern := filepath.Join(top, pkg, "*_test.go")
	if runners[filepath.Ext(pkg)] != nil {
		pattern = filepath.Join(top, pkg)
	}
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", pkg, err)
	}
	found := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^(?:func|\s*(?:async )?(?:fn|def)|\s*public function|  void|  Stream<DynamicTest>) (\w+)|^\s*test\("([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			found[m[1]+m[2]] = true
		}
	}
	return found
}

// A patch that does not apply any more is found here, not only when all are tried.
func TestPatches(t *testing.T) {
	mutants, err := load(".", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if err := m.apply(t.Context(), top, true); err != nil {
				t.Error(err)
			}
			name, _, _ := strings.Cut(m.test.name, "/")
			if !testsOf(t, m.test.pkg)[name] {
				t.Errorf("%s has no test %s", m.test.pkg, name)
			}
		})
	}
}

// The table says of each mutant which test has seen it.
func TestTheTableOfMutants(t *testing.T) {
	mutants, err := load(".", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("TABLE.md")
	if err != nil {
		t.Fatal(err)
	}
	seconds := secondsIn(string(text))
	if table(mutants, seconds) != string(text) {
		t.Error("TABLE.md is not of these patches")
	}
	for _, m := range mutants {
		if _, ok := seconds[m.name]; !ok {
			t.Errorf("nothing has seen %[1]s: make mutants ONLY=%[1]s", m.name)
		}
	}
}

func TestJudge(t *testing.T) {
	ended := errors.New("exit status 1")
	for name, c := range map[string]struct {
		out   string
		ended error
		red   bool
		said  string
		wrong bool
	}{
		"green":   {out: "PASS\n"},
		"no test": {out: "testing: warning: no tests to run\nPASS\n", wrong: true},
		"red": {
			out: "--- FAIL: TestX (0.00s)\n    --- FAIL: TestX/y (0.00s)\n        x_test.go:7: wrong\nFAIL\n", ended: ended,
			red: true, said: "x_test.go:7: wrong",
		},
		"hangs":    {out: "panic: test timed out after 1m30s\n\trunning tests:\n", ended: ended, red: true, said: "panic: test timed out after 1m30s"},
		"deadlock": {out: "fatal error: all goroutines are asleep - deadlock!\n", ended: ended, red: true, said: "fatal error: all goroutines are asleep - deadlock!"},
		"no server": {
			out: "2026/01/01 00:00:00 pgtest: there is no initdb\n", ended: ended, wrong: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var v verdict
			if err := v.judge(c.out, c.ended); (err != nil) != c.wrong || v.red != c.red || v.said != c.said {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

// Tests of clients in other languages are red by what their runners say, not by a runner that is missing.
func TestJudgeClient(t *testing.T) {
	ended := errors.New("exit status 1")
	for name, c := range map[string]struct {
		out   string
		ended error
		red   bool
		said  string
		wrong bool
	}{
		"pytest green":   {out: "..                          [100%]\n2 passed in 0.42s\n"},
		"pytest red":     {out: "E       AssertionError: no\n1 failed in 0.42s\n", ended: ended, red: true, said: "AssertionError: no"},
		"no pytest":      {out: "python: No module named pytest\n", ended: ended, wrong: true},
		"minitest green": {out: "1 runs, 5 assertions, 0 failures, 0 errors, 0 skips\n"},
		"minitest red":   {out: "TcpTest#test_x [x.rb:1]:\nExpected nil.\n\n1 runs, 5 assertions, 1 failures, 0 errors, 0 skips\n", ended: ended, red: true, said: "Expected nil."},
		"no minitest":    {out: "0 runs, 0 assertions, 0 failures, 0 errors, 0 skips\n", wrong: true},
		"phpunit green":  {out: "OK (1 test, 2 assertions)\n"},
		"phpunit red":    {out: "1) X::testY\nFailed asserting that null is true.\n\nFAILURES!\nTests: 1, Assertions: 2, Failures: 1.\n", ended: ended, red: true, said: "Failed asserting that null is true."},
		"no phpunit":     {out: "No tests executed!\n", wrong: true},
		"node green":     {out: "# tests 1\n# pass 1\n# fail 0\n"},
		"node red":       {out: "not ok 1 - x\n  ---\n  error: 'no'\n  ...\n# pass 0\n# fail 1\n", ended: ended, red: true, said: "error: 'no'"},
		"no node":        {out: "# tests 0\n# pass 0\n# fail 0\n", wrong: true},
		"surefire green": {out: "[INFO] Tests run: 1, Failures: 0, Errors: 0, Skipped: 0\n"},
		"surefire red":   {out: "[ERROR] Tests run: 1, Failures: 1, Errors: 0, Skipped: 0\n[ERROR]   TcpTest.x:7 no\n", ended: ended, red: true, said: "[ERROR]   TcpTest.x:7 no"},
		"cargo green":    {out: "running 1 test\n.\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s\n\n"},
		"cargo red":      {out: "thread 'x' panicked at src/x.rs:7:9:\nassertion `left == right` failed\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s\n\n", ended: ended, red: true, said: "assertion `left == right` failed"},
		"no cargo":       {out: "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s\n\n", wrong: true},
		"no surefire":    {out: "[ERROR] No tests matching pattern\n", ended: ended, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			var v verdict
			if err := v.judgeClient(c.out, c.ended); (err != nil) != c.wrong || v.red != c.red || v.said != c.said {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

// A test that reached its own limit is red, although a server that it started keeps its output open.
func TestAServerOutlivesItsTest(t *testing.T) {
	t.Parallel()
	g := &ground{top: t.TempDir()}
	script := filepath.Join(g.top, "x.test")
	text := "#!/bin/sh\nsleep 60 &\necho $! > server\necho 'panic: test timed out after 1m0s'\nexit 2\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	v, err := g.run(t.Context(), script, test{".", "TestX"})
	if err != nil || !v.red || v.took > killAfter {
		t.Errorf("%+v, %v", v, err)
	}
	end := exec.CommandContext(t.Context(), "sh", "-c", "kill $(cat server)")
	end.Dir = g.top
	if out, err := end.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestPattern(t *testing.T) {
	if got := (test{"./x", "TestA/one or two, three/b"}).pattern(); got != "^TestA$/^one_or_two,_three$/^b$" {
		t.Error(got)
	}
}

// A mutant that is seen, one that survives, and one that does not compile, in a module of
// their own.
func TestBite(t *testing.T) {
	from, patches := t.TempDir(), t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(from, "go.mod"), "module example\n\ngo 1.24\n")
	write(filepath.Join(from, "a.go"), "package a\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n")
	write(filepath.Join(from, "a_test.go"), "package a\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(2, 2) != 4 {\n\t\tt.Error(\"wrong\")\n\t}\n}\n")
	for name, sum := range map[string]string{"seen": "a - b", "survives": "a * b", "broken": "a +"} {
		write(filepath.Join(patches, name+".patch"), "# Rule: sums\n# From: school\n# Test: . TestSum\n"+
			"--- a/a.go\n+++ b/a.go\n@@ -3,3 +3,3 @@\n func Sum(a, b int) int {\n-\treturn a + b\n+\treturn "+sum+"\n }\n")
	}
	write(filepath.Join(patches, "elsewhere.patch"), "# Rule: sums\n# From: school\n# Test: . TestSum\n"+
		"--- a/a.go\n+++ b/a.go\n@@ -3,3 +3,3 @@\n func Sum(a, b int) int {\n-\treturn b + a\n+\treturn a\n }\n")
	if out, err := exec.CommandContext(t.Context(), "git", "-C", from, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	temp := t.TempDir()
	g := &ground{from: from, top: filepath.Join(temp, "repository"), bin: temp}
	if err := copyTree(t.Context(), from, g.top); err != nil {
		t.Fatal(err)
	}
	mutants, err := load(patches, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mutants {
		m := &mutants[i]
		v, err := g.bite(t.Context(), m)
		wrong := map[string]string{"broken": "does not compile", "elsewhere": "mend the patch"}[m.name]
		if v.red != (m.name == "seen") || (err != nil) != (wrong != "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %+v, %v", m.name, v, err)
		}
	}
}
