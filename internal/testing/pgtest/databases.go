package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

const (
	superuser = "postgres"
	template  = "prepared"
)

// URL returns the URL of a database of the cluster, for its superuser.
func (c *Cluster) URL(database string) string {
	if c.tcp {
		return fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", superuser, c.port, database)
	}
	return fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d", superuser, database, c.folder, c.port)
}

// As returns the URL of the same database for another role.
func As(databaseURL, role string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		panic(err) // URLs of this package are valid
	}
	u.User = url.User(role)
	return u.String()
}

// Admin returns the URL of the same database for the superuser.
func Admin(databaseURL string) string { return As(databaseURL, superuser) }

// NewDatabase creates a database and returns its URL. If the cluster has a template, the database
// is a copy of it, and the URL has the template's role. Otherwise it is empty, with a URL for the
// superuser. It ends with the cluster.
func (c *Cluster) NewDatabase(tb testing.TB) string {
	tb.Helper()
	if c.template == nil {
		return c.NewEmptyDatabase(tb)
	}
	err := c.template()
	if err != nil {
		tb.Fatal(err)
	}
	made, err := c.create(context.Background(), " TEMPLATE "+template)
	if err != nil {
		tb.Fatal(err)
	}
	return As(made, c.role)
}

// NewEmptyDatabase creates an empty database and returns its URL for the superuser.
func (c *Cluster) NewEmptyDatabase(tb testing.TB) string {
	tb.Helper()
	made, err := c.MakeDatabase(context.Background())
	if err != nil {
		tb.Fatal(err)
	}
	return made
}

// MakeDatabase is NewEmptyDatabase for programs without a testing.TB.
func (c *Cluster) MakeDatabase(ctx context.Context) (string, error) { return c.create(ctx, "") }

func (c *Cluster) create(ctx context.Context, from string) (string, error) {
	name := "db" + strconv.FormatInt(c.databases.Add(1), 10)
	if err := c.exec(ctx, "postgres", "CREATE DATABASE "+name+from); err != nil {
		return "", err
	}
	return c.URL(name), nil
}

func (c *Cluster) makeTemplate(prepare func(url string) error) error {
	if err := c.exec(context.Background(), "postgres", "CREATE DATABASE "+template); err != nil {
		return err
	}
	return prepare(c.URL(template))
}

// Put replaces a file that the server reads, and returns after the server has read it.
func (c *Cluster) Put(tb testing.TB, name string, content []byte) {
	tb.Helper()
	if err := c.put(file{name, content}); err != nil {
		tb.Fatal(err)
	}
	// A new connection reports when the server last read its settings.
	read := func() time.Time { return newQuery[time.Time](tb, c.URL("postgres"), "SELECT pg_conf_load_time()") }
	before := read()
	Query[bool](tb, c.URL("postgres"), "SELECT pg_reload_conf()")
	for began := time.Now(); !read().After(before); time.Sleep(time.Millisecond) {
		if time.Since(began) > startLimit {
			tb.Fatal("pgtest: the server does not read its files")
		}
	}
}

// put writes a file that only the server's user can read, as the server requires for keys.
func (c *Cluster) put(f file) error {
	path := filepath.Join(c.data(), f.name)
	err := os.WriteFile(path, f.content, 0o600)
	if err == nil && c.who != nil {
		err = os.Chown(path, int(c.who.Uid), int(c.who.Gid))
	}
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}
