package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// copyTree copies what git knows of a repository, or would add, as it lies there.
func copyTree(ctx context.Context, from, to string) error {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = from
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if err := copyFile(from, to, file); err != nil && !errors.Is(err, fs.ErrNotExist) { // deleted
			return err
		}
	}
	return nil
}

// copyFile copies one file, with its mode, which some are executed by.
func copyFile(from, to, file string) error {
	source, target := filepath.Join(from, file), filepath.Join(to, file)
	info, err := os.Stat(source)
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	text, err := os.ReadFile(source) //nolint:gosec // a file of the repository
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	return os.WriteFile(target, text, info.Mode().Perm()) //nolint:gosec // its copy
}
