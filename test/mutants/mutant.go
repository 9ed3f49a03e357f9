package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is one broken rule.
type mutant struct {
	name  string // of the patch, without .patch
	patch string // its path
	// The head of the patch.
	rule, from string
	test       test
	files      []string // that it changes
}

// test is a test of a package, with its subtests behind slashes.
type test struct{ pkg, name string }

func (t test) String() string { return strings.TrimPrefix(t.pkg, "./") + " " + t.name }

// pattern is the test for -test.run, and nothing else.
func (t test) pattern() string {
	parts := strings.Split(t.name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(strings.ReplaceAll(part, " ", "_")) + "$"
	}
	return strings.Join(parts, "/")
}

// load reads the patches of a folder in the order of their names; with only, those that
// are named.
func load(folder string, only []string) ([]mutant, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.patch"))
	if err != nil {
		return nil, err
	}
	var found []mutant
	for _, path := range paths {
		m, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if len(only) == 0 || slices.Contains(only, m.name) {
			found = append(found, m)
		}
	}
	if len(found) == 0 || len(found) < len(only) {
		return nil, fmt.Errorf("%d patches in %s, want %s", len(found), folder, strings.Join(only, ", "))
	}
	return found, nil
}

// read reads a patch.
func read(path string) (mutant, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return mutant{}, err
	}
	text, err := os.ReadFile(path) //nolint:gosec // a patch of the repository
	if err != nil {
		return mutant{}, err
	}
	m := mutant{name: strings.TrimSuffix(filepath.Base(path), ".patch"), patch: path}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if rule, ok := strings.CutPrefix(line, "# Rule: "); ok {
			m.rule = rule
		}
		if from, ok := strings.CutPrefix(line, "# From: "); ok {
			m.from = from
		}
		if test, ok := strings.CutPrefix(line, "# Test: "); ok {
			m.test.pkg, m.test.name, _ = strings.Cut(test, " ")
		}
		if file, ok := strings.CutPrefix(line, "+++ b/"); ok {
			m.files = append(m.files, file)
		}
	}
	if m.rule == "" || m.from == "" || m.test.name == "" || len(m.files) == 0 {
		return mutant{}, fmt.Errorf("the head must say # Rule, # From and # Test: package name; and files must follow")
	}
	return m, nil
}

// apply changes the files in a copy of the repository; with check, it only sees whether
// that would work.
func (m *mutant) apply(ctx context.Context, top string, check bool) error {
	args := []string{"apply"}
	if check {
		args = append(args, "--check")
	}
	cmd := exec.CommandContext(ctx, "git", append(args, m.patch)...)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(top)) // a copy is no repository
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mend the patch, it does not apply: %s", strings.TrimSpace(string(out)))
	}
	return nil
}

// restore takes the files of a copy from where it was copied.
func (m *mutant) restore(from, top string) error {
	for _, file := range m.files {
		if err := copyFile(from, top, file); err != nil {
			return err
		}
	}
	return nil
}
