package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// errNoPooler is the error on a machine without PgBouncer.
var errNoPooler = errors.New("pgtest: PgBouncer is not installed: `apt-get install pgbouncer` on Debian and Ubuntu, " +
	"`brew install pgbouncer` on macOS, or put its folder into PATH")

// poolerPlaces are where packages put it, besides PATH.
var poolerPlaces = []string{"/usr/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer", "/usr/local/bin/pgbouncer"}

// Pooler starts a PgBouncer in transaction mode before the cluster, with so many
// connections to each database, and returns the URL that leads through it to the
// database of the given one, on TCP when the cluster is. It ends with the test.
func (c *Cluster) Pooler(tb testing.TB, url string, size int) string {
	tb.Helper()
	return c.Switch(tb, url, size).URL
}

// Switch is a Pooler that can be pointed at another cluster.
type Switch struct {
	// URL leads through it.
	URL string

	ini, user, rest string
	process         *process
}

// Point makes it lead to a cluster that has TCP. Connections to the one before end when
// they are handed back.
func (s *Switch) Point(to *Cluster) error {
	if err := s.write("127.0.0.1", to.port); err != nil {
		return err
	}
	return syscall.Kill(s.process.pid, syscall.SIGHUP)
}

func (s *Switch) write(host string, port int) error {
	database := fmt.Sprintf("[databases]\n* = host=%s port=%d user=%s\n", host, port, s.user)
	return os.WriteFile(s.ini, []byte(database+s.rest), 0o644)
}

// Switch starts such a pooler. More of its settings may be given.
func (c *Cluster) Switch(tb testing.TB, url string, size int, more ...string) *Switch {
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
	s := &Switch{ini: filepath.Join(folder, "ini"), user: config.User}
	log := filepath.Join(folder, "log")
	own := []string{
		"[pgbouncer]", "pool_mode = transaction", fmt.Sprintf("default_pool_size = %d", size), "max_client_conn = 500",
		"auth_type = any", "server_login_retry = 1", "logfile = " + log,
	}
	if c.tcp {
		port, err := FreePort()
		if err != nil {
			tb.Fatal(err)
		}
		own = append(own, "listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", port), "unix_socket_dir =")
		s.URL = fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", config.User, port, config.Database)
	} else {
		own = append(own, "listen_addr =", "listen_port = 6432", "unix_socket_dir = "+folder)
		s.URL = fmt.Sprintf("postgres://%s@/%s?host=%s&port=6432", config.User, config.Database, folder)
	}
	s.rest = strings.Join(append(append(own, more...), ""), "\n")
	if err := s.write(config.Host, int(config.Port)); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(program, "-q", s.ini)
	cmd.Dir, cmd.SysProcAttr = folder, attributes(c.who)
	if s.process, err = c.spawn(cmd); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.process.end(syscall.SIGKILL) })
	if err := s.process.answers(s.URL); err != nil {
		text, _ := os.ReadFile(log)
		tb.Fatalf("pgtest: PgBouncer does not answer: %v\n%s", err, text)
	}
	return s
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
