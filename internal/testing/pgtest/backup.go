package pgtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Tool runs one of PostgreSQL's programs, such as pg_dump, and returns its output. args name the
// database. Packages may install it in another folder than the server's programs.
func (c *Cluster) Tool(tb testing.TB, stdin []byte, name string, args ...string) []byte {
	tb.Helper()
	cmd := c.command(name, args...)
	if !executable(c.bin, name) {
		path, err := exec.LookPath(name)
		if err != nil {
			tb.Fatalf("pgtest: %v", err)
		}
		cmd.Path, cmd.Err = path, nil
	}
	cmd.Stdin = bytes.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout = &out
	if problems, err := toItsEnd(cmd); err != nil {
		tb.Fatalf("pgtest: %s %v: %v\n%s", name, args, err, problems)
	}
	return out.Bytes()
}

// Recover starts a stopped server like one that recovers from a backup, up to the end of its log.
// It needs the setting restore_command.
func (c *Cluster) Recover(tb testing.TB) {
	tb.Helper()
	c.mark(tb, "recovery.signal")
	if err := c.launch(); err != nil {
		tb.Fatal(err)
	}
}

// mark writes one of the empty files by which a server decides how to start.
func (c *Cluster) mark(tb testing.TB, name string) {
	tb.Helper()
	path := filepath.Join(c.data(), name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	if c.who != nil {
		if err := os.Chown(path, int(c.who.Uid), int(c.who.Gid)); err != nil {
			tb.Fatal(err)
		}
	}
}
