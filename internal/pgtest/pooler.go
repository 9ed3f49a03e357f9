package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// errNoPooler is what a machine without PgBouncer is told.
var errNoPooler = errors.New("pgtest: PgBouncer is not installed: `apt-get install pgbouncer` on Debian and Ubuntu, " +
	"`brew install pgbouncer` on macOS, or put its folder into PATH")

// poolerPlaces are where packages put it, besides PATH.
var poolerPlaces = []string{"/usr/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer", "/usr/local/bin/pgbouncer"}

// Pooler starts a PgBouncer in transaction mode before the cluster, with so many
// connections to each database, and returns the URL that leads through it to the
// database of the given one. It ends with the test.
func (c *Cluster) Pooler(tb testing.TB, url string, size int) string {
	tb.Helper()
	program, err := pooler()
	if err != nil {
		tb.Fatal(err)
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		tb.Fatal(err)
	}
	folder, err := newFolder(c.who, "")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(folder) })
	ini := filepath.Join(folder, "ini")
	settings := fmt.Sprintf("[databases]\n* = host=%s port=%d user=postgres\n[pgbouncer]\n"+
		"pool_mode = transaction\ndefault_pool_size = %d\nauth_type = any\nlisten_addr =\nlisten_port = 6432\n"+
		"unix_socket_dir = %s\nlogfile = %s\n", config.Host, config.Port, size, folder, filepath.Join(folder, "log"))
	if err := os.WriteFile(ini, []byte(settings), 0o644); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(program, "-q", ini)
	cmd.Dir, cmd.SysProcAttr = folder, attributes(c.who)
	p, err := c.spawn(cmd)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { p.end(syscall.SIGKILL) })
	through := fmt.Sprintf("postgres://postgres@/%s?host=%s&port=6432", config.Database, folder)
	if err := p.answers(through); err != nil {
		text, _ := os.ReadFile(filepath.Join(folder, "log"))
		tb.Fatalf("pgtest: PgBouncer does not answer: %v\n%s", err, text)
	}
	return through
}

func pooler() (string, error) {
	if program, err := exec.LookPath("pgbouncer"); err == nil {
		return program, nil
	}
	for _, place := range poolerPlaces {
		if program, err := exec.LookPath(place); err == nil {
			return program, nil
		}
	}
	return "", errNoPooler
}

// answers waits until connections are taken.
func (p *process) answers(url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.ended:
			return errors.Join(errors.New("it ended"), err)
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}
