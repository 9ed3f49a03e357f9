package e2e

import (
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// hbaTrust gives the tests' own roles access, before other lines.
const hbaTrust = "host all postgres,admin,locksidecar_migrator 127.0.0.1/32 trust\n"

// withPassword returns a URL over TCP with a user, a password and parameters.
func withPassword(t *testing.T, database, user, password, query string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User, u.Host, u.RawQuery = url.UserPassword(user, password), net.JoinHostPort("localhost", u.Port()), query
	return u.String()
}

const (
	urlFile   = "store-url"
	cannotUse = "the store's URL cannot be used now"
	anotherIn = "the store's URL has another user or password"
	renewing  = "%:lease_renew %"
)

// rotation is two sidecars whose password is in a file. One lock must stay held, and a call waits
// for it.
type rotation struct {
	*testing.T
	url             string // the superuser's URL
	secret          *certtest.Secret
	one, two        *sidecar
	session         *stream
	holder, waiting *app
	token           int64
}

func newRotation(t *testing.T) *rotation {
	t.Helper()
	own := pgtest.Start(t, pgtest.WithTCP(), pgtest.WithoutFsync(), pgroles.Template(),
		pgtest.WithFile("pg_hba.conf", []byte(hbaTrust+"host all all 127.0.0.1/32 scram-sha-256\n"))) //nolint:dupword // database and user
	r := &rotation{T: t, url: pgtest.Admin(own.NewDatabase(t))}
	r.alter("s3cret-first")
	r.secret = certtest.MountFiles(t, r.file(pgroles.Sidecar, "s3cret-first"))
	o := options{"STORE_URL_FILE": r.secret.File(urlFile), "TTL": "8s", "RENEW_INTERVAL": "500ms", "POSTGRES_POLL_INTERVAL": noPoll}
	r.one, r.two = start(t, o), start(t, o)
	r.session = openSession(t, r.one.socket, "")
	r.holder, r.waiting = dial(t, r.one.socket), dial(t, r.two.socket)
	r.token = r.holder.acquire("kept", "", r.session.joins())
	r.waiting.send("PUT", lockPath("kept"), `{"wait_ms":-1}`)
	r.one.awaitQueue("kept", 1)
	r.lives(pgroles.Sidecar) // also on connections that a grant does not wait for
	return r
}

func (r *rotation) file(user, password string) map[string][]byte {
	return map[string][]byte{urlFile: []byte(withPassword(r.T, r.url, user, password, "sslmode=disable") + "\n")}
}

func (r *rotation) alter(password string) {
	execute(r.T, r.url, "ALTER ROLE "+pgroles.Sidecar+" PASSWORD '"+password+"'")
}

// reconnect closes all connections of the sidecars.
func (r *rotation) reconnect() {
	r.Helper()
	n := pgtest.Query[int64](r.T, r.url, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'locksidecar'`)
	if n < 4 { // those for renewals and LISTEN of each
		r.Errorf("only %d connections were closed", n)
	}
}

// both waits until both logs have this number of lines with a text.
func (r *rotation) both(n int, text string) {
	r.Helper()
	for _, s := range []*sidecar{r.one, r.two} {
		s.await(text, func() bool { return len(s.logged(text)) >= n })
		if got := s.logged(text); len(got) != n {
			r.Errorf("%d lines with %q, want %d: %s", len(got), text, n, got)
		}
	}
}

// lives checks that both sidecars renew on connections of a user, that both listen, and that the
// lock is held.
func (r *rotation) lives(user string) {
	r.Helper()
	for _, last := range []string{renewing, listening} {
		eventually(r.T, "both sidecars as "+user+": "+last, func() bool {
			return pgtest.Query[int64](r.T, r.url, `SELECT count(*) FROM pg_stat_activity
				WHERE datname = current_database() AND usename = $1 AND query LIKE $2`, user, last) == 2
		})
	}
	r.renews()
	if view := r.holder.call("GET", lockPath("kept"), "", r.session.joins()); view.json["mine"] != true {
		r.Errorf("the lock is no longer held: %s", view.body)
	}
}

// renews waits until all leases have been renewed.
func (r *rotation) renews() {
	r.Helper()
	since := pgtest.Query[time.Time](r.T, r.url, "SELECT max(expires_at) FROM locksidecar.leases WHERE renewed")
	eventually(r.T, "renewals", func() bool {
		return pgtest.Query[bool](r.T, r.url, "SELECT min(expires_at) > $1 FROM locksidecar.leases WHERE renewed", since)
	})
}

// TestNewPassword: the password of the database's role is replaced, on the server first or in the
// file first, and then the role itself. All connections break. No lock is lost, and no sidecar is
// restarted.
// Proves: rule credentials
func TestNewPassword(t *testing.T) {
	t.Parallel()
	r := newRotation(t)

	// The file first: the server does not know the new password yet.
	r.secret.Replace(r.file(pgroles.Sidecar, "s3cret-second"))
	r.reconnect()
	r.both(1, cannotUse)
	r.lives(pgroles.Sidecar)
	r.alter("s3cret-second")
	r.reconnect()
	r.both(1, anotherIn)
	r.lives(pgroles.Sidecar)

	// The server first: existing connections stay, and renewals work.
	r.alter("s3cret-third")
	renewals := func() string {
		return pgtest.Query[string](t, r.url, `SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE $1`, renewing)
	}
	before := renewals()
	pgtest.Query[int64](t, r.url, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'locksidecar' AND query NOT LIKE $1`, renewing)
	for _, s := range []*sidecar{r.one, r.two} {
		dial(t, s.socket).call("PUT", lockPath("new"), "").want(503, "store_unavailable")
		s.await("the reason", func() bool { return len(s.logged("the store is not ready", "password authentication failed")) > 0 })
	}
	r.renews()
	if after := renewals(); after != before {
		t.Errorf("renewals had the connections %s, but now have %s", before, after)
	}
	r.secret.Replace(r.file(pgroles.Sidecar, "s3cret-third"))
	r.one.await("ready", r.one.tryReady)
	r.two.await("ready", r.two.tryReady)
	r.lives(pgroles.Sidecar)

	// Another role, so that both roles are valid.
	execute(t, r.url, "CREATE ROLE locksidecar_b LOGIN PASSWORD 's3cret-fourth' IN ROLE "+pgroles.Sidecar)
	r.secret.Replace(r.file("locksidecar_b", "s3cret-fourth"))
	r.reconnect()
	r.lives("locksidecar_b")
	r.alter("s3cret-revoked")

	r.end()
}

// end releases the lock to its waiter, and reads the logs.
func (r *rotation) end() {
	r.Helper()
	r.holder.release("kept", r.token, r.session.joins())
	if next := r.waiting.read("PUT", lockPath("kept")).granted(); next <= r.token {
		r.Errorf("token %d after %d", next, r.token)
	}
	select {
	case e := <-r.session.events:
		r.Errorf("the session's event is %s %s", e.name, e.raw)
	default:
	}
	for _, s := range []*sidecar{r.one, r.two} {
		s.noErrors()
		if lines := s.logged("s3cret"); len(lines) > 0 {
			r.Errorf("the log contains a password: %s", lines[0])
		}
	}
}

// TestBadSecret: a file that cannot be used only causes one log line.
// Proves: rule credentials
func TestBadSecret(t *testing.T) {
	t.Parallel()
	r := newRotation(t)
	elsewhere := strings.Replace(string(r.file(pgroles.Sidecar, "s3cret-first")[urlFile]), "?", "_other?", 1)
	for i, content := range []string{"", elsewhere, "s3cret"} {
		r.secret.Replace(map[string][]byte{urlFile: []byte(content)})
		r.reconnect() // of three connections each
		r.lives(pgroles.Sidecar)
		r.both(i+1, cannotUse)
	}
	r.end()
}
