package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

const (
	tlsPassword = "do-not-tell"
	hbaPassword = hbaTrust + "hostssl all all 127.0.0.1/32 scram-sha-256\n" //nolint:dupword // database and user
	hbaCert     = hbaTrust + "hostssl all all 127.0.0.1/32 cert\n"          //nolint:dupword // database and user

	sslOn  = "ssl = on\nssl_ca_file = 'root.crt'\n"
	sslOff = "ssl = off\n"
)

// secure is a server that accepts sidecars only over TLS and with a password.
type secure struct {
	*testing.T
	*pgtest.Cluster
	ca       *certtest.Authority
	database string
}

func newSecure(t *testing.T) *secure {
	t.Helper()
	ca := certtest.New(t)
	pair := ca.Issue("localhost", time.Now().Add(time.Hour))
	s := &secure{T: t, ca: ca, Cluster: pgtest.Start(t, pgtest.WithTCP(), pgtest.WithoutFsync(), pgroles.Template(),
		pgtest.WithFile("pg_hba.conf", []byte(hbaPassword)), pgtest.WithFile("postgresql.auto.conf", []byte(sslOn)),
		pgtest.WithFile("root.crt", ca.PEM()), pgtest.WithFile("server.crt", pair.Cert), pgtest.WithFile("server.key", pair.Key))}
	s.database = s.NewDatabase(t)
	execute(t, pgtest.Admin(s.database), "ALTER ROLE "+pgroles.Sidecar+" PASSWORD '"+tlsPassword+"'")
	return s
}

// certify gives the server another certificate.
func (s *secure) certify(pair certtest.Pair) {
	s.Put(s.T, "server.key", pair.Key)
	s.Put(s.T, "server.crt", pair.Cert)
}

// options returns the options of a sidecar that trusts a CA. more is added to the URL.
func (s *secure) options(root []byte, more string) options {
	file := s.file(root)
	return options{"STORE_URL": withPassword(s.T, s.database, pgroles.Sidecar, tlsPassword, "sslmode=verify-full&sslrootcert="+file+more)}
}

func (s *secure) file(content []byte) string {
	s.Helper()
	path := filepath.Join(s.TempDir(), "pem")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.Fatal(err)
	}
	return path
}

// encrypted counts a database's connections with TLS.
const encrypted = `SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
	WHERE datname = current_database() AND application_name = 'locksidecar' AND ssl`

// TestTLS: with sslmode=verify-full, a wrong server gets no password, and the log gives the reason.
// Proves: rule credentials
func TestTLS(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	good := s.ca.Issue("localhost", time.Now().Add(time.Hour))
	refused := func(name string, o options, why string) {
		t.Helper()
		c := launch(t, folder(t), o)
		c.await(name+": the reason", func() bool { return len(c.logged("the store is not ready", why)) > 0 })
		if c.tryReady() {
			t.Errorf("%s: ready", name)
		}
		if lines := c.logged(tlsPassword); len(lines) > 0 {
			t.Errorf("%s: the log contains the password: %s", name, lines[0])
		}
		c.kill()
	}

	for name, more := range map[string]string{"verify-full": "", "channel binding": "&channel_binding=require&require_auth=scram-sha-256"} {
		one, two := start(t, s.options(s.ca.PEM(), more)), start(t, s.options(s.ca.PEM(), more))
		exchange(t, one, two)
		if n := pgtest.Query[int64](t, s.database, encrypted); n < 4 {
			t.Errorf("%s: %d encrypted connections", name, n)
		}
		for _, c := range []*sidecar{one, two} {
			if lines := c.logged("is not verified"); len(lines) > 0 {
				t.Errorf("%s: %s", name, lines[0])
			}
			c.stop()
		}
	}
	refused("another CA", s.options(certtest.New(t).PEM(), ""), "certificate signed by unknown authority")
	s.certify(s.ca.Issue("db.example.com", time.Now().Add(time.Hour)))
	refused("another host", s.options(s.ca.PEM(), ""), "certificate is valid for db.example.com, not localhost")
	s.certify(s.ca.Issue("localhost", time.Now().Add(-time.Minute)))
	refused("an old certificate", s.options(s.ca.PEM(), ""), "certificate has expired")
	s.certify(good)
	s.Put(t, "postgresql.auto.conf", []byte(sslOff))
	refused("a plain server", s.options(s.ca.PEM(), ""), "server refused TLS connection")
}

// TestTLSCertificates: a sidecar identifies itself by a certificate. All certificate files may be
// replaced, and new connections use the new files.
// Proves: rule credentials
func TestTLSCertificates(t *testing.T) {
	t.Parallel()
	s := newSecure(t)
	s.Put(t, "pg_hba.conf", []byte(hbaCert))
	client := s.ca.IssueClient(pgroles.Sidecar)
	files := map[string][]byte{"ca.crt": s.ca.PEM(), "tls.crt": client.Cert, "tls.key": client.Key}
	secret := certtest.MountFiles(t, files)
	o := options{"STORE_URL": withPassword(t, s.database, pgroles.Sidecar, "", "sslmode=verify-full&sslrootcert="+secret.File("ca.crt")+
		"&sslcert="+secret.CertFile()+"&sslkey="+secret.KeyFile()), "TTL": "8s", "RENEW_INTERVAL": "500ms"}
	one, two := start(t, o), start(t, o)
	holder, other := dial(t, one.socket), dial(t, two.socket)
	token := holder.acquire("kept", "")
	other.acquire("other", "")

	none := launch(t, folder(t), s.options(s.ca.PEM(), ""))
	none.await("the reason", func() bool { return len(none.logged("requires a valid client certificate")) > 0 })
	none.kill()

	// From now on, all certificates come from another CA.
	next := certtest.New(t)
	client = next.IssueClient(pgroles.Sidecar)
	secret.Replace(map[string][]byte{"ca.crt": next.PEM(), "tls.crt": client.Cert, "tls.key": client.Key})
	s.Put(t, "root.crt", next.PEM())
	s.certify(next.Issue("localhost", time.Now().Add(time.Hour)))
	pgtest.Query[int64](t, s.database, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'locksidecar'`)
	const renewed = `SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
		WHERE datname = current_database() AND client_serial = 2 AND query LIKE $1` // the first client certificate of the CA
	eventually(t, "renewals by the new certificates", func() bool {
		return pgtest.Query[int64](t, s.database, renewed, renewing) == 2
	})
	one.await("ready", one.tryReady)
	two.await("ready", two.tryReady)
	holder.release("kept", token)
	exchange(t, one, two)
}
