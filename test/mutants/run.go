package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// testLimit is how long a test may take. It ends itself then, which counts as red.
	testLimit = time.Minute
	// killAfter is how much later it is ended from here, which counts for nothing.
	killAfter = 20 * time.Second
	// drainAfter is how long the servers of a test that has ended may keep its output open. It is less than killAfter: otherwise a
	// test that ended by its own limit would count as one that did not end.
	drainAfter = 2 * time.Second
)

// ground is a copy of the repository in which tests run.
type ground struct {
	from, top string // the repository, and the copy
	bin       string // a folder for what is compiled
	sidecar   string // for the tests of clients; empty: not compiled
}

// compile compiles the tests of a package. Those of a client in another language are a file, which needs the sidecar.
func (g *ground) compile(ctx context.Context, pkg string) (binary string, err error) {
	if strings.HasPrefix(pkg, clients) && g.sidecar == "" {
		if g.sidecar, err = g.build(ctx); err != nil {
			return "", err
		}
	}
	if runners[filepath.Ext(pkg)] != nil {
		return pkg, g.compileClient(ctx, pkg)
	}
	binary = filepath.Join(g.bin, strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "-")+".test")
	// -trimpath: what was compiled in another copy need not be compiled again. Without
	// debug information the linker is much faster.
	module, pkg := moduleOf(pkg)
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-trimpath", "-ldflags=-s -w", "-o", binary, pkg)
	cmd.Dir = filepath.Join(g.top, module)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("it does not compile: %s", bytes.TrimSpace(out))
	}
	return binary, nil
}

// compilers are the commands that compile a client and its tests, by the ending of the test's file, in the client's folder. The packages that Node needs are
// those of the repository.
var compilers = map[string]func(from, file string) []string{
	".ts": func(from, _ string) []string {
		const all = `ln -sfn "$0" node_modules && node_modules/.bin/tsc -p tsconfig.json && node_modules/.bin/tsc -p test/tsconfig.json`
		return []string{"sh", "-c", all, filepath.Join(from, clients, "node", "node_modules")}
	},
	".java": func(string, string) []string {
		return []string{"mvn", "-q", "-B", "-ntp", "-pl", "client", "test-compile"}
	},
	".rs": func(from, file string) []string { return append(cargo(from, file), "--no-run") },
}

// cargo is the command that compiles the tests of a file of the client for Rust. Their folder is not that of the repository, whose next build would take what
// is compiled here for its own.
func cargo(from, file string) []string {
	tests := []string{"--lib"}
	if filepath.Dir(file) == "tests" {
		tests = []string{"--test", strings.TrimSuffix(filepath.Base(file), ".rs")}
	}
	command := []string{"env", "CARGO_TARGET_DIR=" + filepath.Join(from, ".bin", "mutants-rust"), "cargo", "test", "-q", "--locked", "--all-features"}
	return append(command, tests...)
}

// compileClient compiles a client in another language, if that is to be compiled.
func (g *ground) compileClient(ctx context.Context, pkg string) error {
	compiler := compilers[filepath.Ext(pkg)]
	if compiler == nil {
		return nil
	}
	folder, file, _ := strings.Cut(strings.TrimPrefix(pkg, clients), "/")
	argv := compiler(g.from, file)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = filepath.Join(g.top, clients, folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("it does not compile: %s", bytes.TrimSpace(out))
	}
	return nil
}

// build compiles the sidecar.
func (g *ground) build(ctx context.Context) (binary string, err error) {
	binary = filepath.Join(g.top, "bin", "locksidecar") // where the tests of the clients look for it
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", binary, "./cmd/locksidecar")
	cmd.Dir = g.top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the sidecar does not compile: %s", bytes.TrimSpace(out))
	}
	return binary, nil
}

// modules of their own, and the folder of the clients.
const (
	campaign = "./test/campaign"
	goClient = "./clients/go"
	clients  = "./clients/"
)

// moduleOf is the folder of the module that a package belongs to, and its path from there.
func moduleOf(pkg string) (module, rest string) {
	for _, module := range []string{campaign, goClient} {
		if rest, ok := strings.CutPrefix(pkg+"/", module+"/"); ok {
			return module, "./" + strings.TrimSuffix(rest, "/")
		}
	}
	return ".", pkg
}

// runners are the commands that run one test of a file of a client, by the file's ending, in the client's folder. The environment of
// Python is that of the repository; what it imports is the copy.
var runners = map[string]func(from, file, name string) []string{
	".py": func(from, file, name string) []string {
		return []string{filepath.Join(from, clients, "python", ".venv", "bin", "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", file + "::" + name}
	},
	".rb": func(_, file, name string) []string { return []string{"ruby", file, "-n", name} },
	".php": func(_, file, name string) []string {
		return []string{"phpunit", "--filter", "/::" + name + "( |$)/", file}
	},
	".ts": func(_, file, name string) []string {
		compiled := filepath.Join("build", strings.TrimSuffix(filepath.Base(file), ".ts")+".js")
		return []string{"node", "--test", "--test-reporter=tap", "--test-name-pattern=^" + regexp.QuoteMeta(name) + "$", compiled}
	},
	".java": func(_, file, name string) []string {
		class := strings.TrimSuffix(filepath.Base(file), ".java")
		return []string{"mvn", "-B", "-ntp", "-pl", "client", "surefire:test", "-Dtest=" + class + "#" + name}
	},
	".rs": func(from, file, name string) []string {
		if module, ok := strings.CutPrefix(file, "src/"); ok {
			name = strings.ReplaceAll(strings.TrimSuffix(module, ".rs"), "/", "::") + "::tests::" + name
		}
		return append(cargo(from, file), "--", "--exact", name)
	},
}

// clientTest is the command of a test of a client in another language. Its limit counts as red, as that of a test in Go.
func (g *ground) clientTest(ctx context.Context, t test) *exec.Cmd {
	folder, file, _ := strings.Cut(strings.TrimPrefix(t.pkg, clients), "/")
	argv := append([]string{strconv.Itoa(int(testLimit.Seconds()))}, runners[filepath.Ext(t.pkg)](g.from, file, t.name)...)
	cmd := exec.CommandContext(ctx, "timeout", argv...)
	cmd.Dir = filepath.Join(g.top, clients, folder)
	return cmd
}

// verdict is what a test said.
type verdict struct {
	red  bool
	said string // its first words, if it is red
	took time.Duration
}

// run runs a test of a compiled package.
func (g *ground) run(ctx context.Context, binary string, t test) (verdict, error) {
	limited, cancel := context.WithTimeout(ctx, testLimit+killAfter)
	defer cancel()
	var cmd *exec.Cmd
	if runners[filepath.Ext(t.pkg)] != nil {
		cmd = g.clientTest(limited, t)
	} else {
		cmd = exec.CommandContext(limited, binary, "-test.run", t.pattern(), "-test.timeout", testLimit.String())
		cmd.Dir = filepath.Join(g.top, t.pkg)
	}
	if g.sidecar != "" {
		cmd.Env = append(os.Environ(), "LOCKSIDECAR_BINARY="+g.sidecar, "PYTHONPATH="+filepath.Join(g.top, clients, "python", "src"))
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = drainAfter
	began := time.Now()
	out, err := cmd.CombinedOutput()
	v := verdict{took: time.Since(began)}
	if limited.Err() != nil {
		return v, fmt.Errorf("%s did not end: %w", t, limited.Err())
	}
	if runners[filepath.Ext(t.pkg)] != nil {
		err = v.judgeClient(string(out), err)
	} else {
		err = v.judge(string(out), err)
	}
	return v, err
}

var (
	failed = regexp.MustCompile(`(?m)^\s*--- FAIL: \S+`)
	// broke is how a test ends the process: by its time limit, a panic, a deadlock.
	broke = regexp.MustCompile(`(?m)^(panic|fatal error): .*`)
	// line is what a failed test says, with where it stands.
	line = regexp.MustCompile(`(?m)^\s+[\w./-]+\.go:\d+: .*`)
)

// judge reads what a test printed before it ended so. The error is for what is neither red
// nor green.
func (v *verdict) judge(out string, ended error) error {
	if ended == nil {
		if strings.Contains(out, "no tests to run") {
			return errors.New("there is no such test")
		}
		return nil
	}
	at := failed.FindStringIndex(out)
	panicked := broke.FindString(out)
	switch {
	case at != nil:
		v.said = strings.TrimSpace(line.FindString(out[at[0]:]))
	case panicked != "":
		v.said = panicked
	default:
		return fmt.Errorf("no test failed, but: %w\n%s", ended, strings.TrimSpace(out))
	}
	v.red = true
	return nil
}

var (
	// counts is what a runner says of the tests that it ran: pytest, minitest, PHPUnit, Node, Maven, Cargo.
	counts = regexp.MustCompile(`(?m)^(?:=*\s*)?(\d+ (?:failed|passed)\b.*|[1-9]\d* runs, .*|OK \(\d+ tests?, .*|Tests: [1-9].*|# (?:pass|fail) [1-9]\d*|\[\w+\] Tests run: [1-9].*|test result: .* [1-9]\d* (?:passed|failed);.*)$`)
	// reason is what a failed test says.
	reason = regexp.MustCompile(`(?m)^(?:E +|\S+Error: |\S+Exception: |Failed asserting |Expected |Locksidecar\S+: |Mutant\S* |\s+error: '|assertion |\[ERROR\]   ).*$`)
)

// timedOut is what `timeout` returns.
const timedOut = 124

// judgeClient is judge for the tests of clients in other languages.
func (v *verdict) judgeClient(out string, ended error) error {
	if ended != nil {
		var exit *exec.ExitError
		if errors.As(ended, &exit) && exit.ExitCode() == timedOut {
			v.red, v.said = true, "it did not end in its time"
			return nil
		}
	}
	ran := counts.FindString(out)
	if ran == "" {
		return fmt.Errorf("no test ran: %w\n%s", ended, strings.TrimSpace(out))
	}
	if ended != nil {
		v.red, v.said = true, strings.TrimSpace(strings.TrimPrefix(reason.FindString(out), "E "))
		if v.said == "" {
			v.said = ran
		}
	}
	return nil
}

// bite breaks a rule, and lets its test see it.
func (g *ground) bite(ctx context.Context, m *mutant) (v verdict, err error) {
	defer func() { err = errors.Join(err, m.restore(g.from, g.top)) }()
	if err := m.apply(ctx, g.top, false); err != nil {
		return v, err
	}
	binary, err := g.compile(ctx, m.test.pkg)
	if err != nil {
		return v, err
	}
	return g.run(ctx, binary, m.test)
}
