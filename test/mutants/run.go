package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
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
}

// compile compiles the tests of a package.
func (g *ground) compile(ctx context.Context, pkg string) (binary string, err error) {
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

// campaign is a module of its own.
const campaign = "./test/campaign"

// moduleOf is the folder of the module that a package belongs to, and its path from there.
func moduleOf(pkg string) (module, rest string) {
	if rest, ok := strings.CutPrefix(pkg, campaign+"/"); ok {
		return campaign, "./" + rest
	}
	return ".", pkg
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
	cmd := exec.CommandContext(limited, binary, "-test.run", t.pattern(), "-test.timeout", testLimit.String())
	cmd.Dir = filepath.Join(g.top, t.pkg)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = drainAfter
	began := time.Now()
	out, err := cmd.CombinedOutput()
	v := verdict{took: time.Since(began)}
	if limited.Err() != nil {
		return v, fmt.Errorf("%s did not end: %w", t, limited.Err())
	}
	err = v.judge(string(out), err)
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
