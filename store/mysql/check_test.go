package mysql_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/mysql"
)

func TestVersions(t *testing.T) {
	t.Parallel()
	for text, suits := range map[string]bool{
		"10.11.19-MariaDB-0+deb12u1": true, "10.6.0-MariaDB": true, "11.4.2-MariaDB-log": true, "8.0.36": true, "8.4.0-commercial": true, "9.1.0": true,
		"10.5.9-MariaDB": false, "5.7.44": false, "5.5.5-MariaDB": false, "": false,
	} {
		if _, err := mysql.Version(text); (err == nil) != suits {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Settings that make locks impossible are refused, and those that may forget some are said.
func TestSettings(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t, mysqltest.WithFlag("--innodb-flush-log-at-trx-commit=2"), mysqltest.WithFlag("--log-bin"),
		mysqltest.WithFlag("--sync-binlog=0"), mysqltest.WithFlag("--binlog-format=STATEMENT"), mysqltest.WithFlag("--max-allowed-packet=1M"))
	s := empty(t, m)
	log := s.logged()
	r := s.start("one")
	r.Refuses("binlog_format is STATEMENT")
	m.Exec(t, "SET GLOBAL binlog_format = ROW")
	r.Refuses("max_allowed_packet is 1048576")
	m.Exec(t, "SET GLOBAL max_allowed_packet = 16777216")
	r.Refuses("run `locksidecar migrate`")
	if _, err := r.SwapOne(cas.Swap{Key: "ns/key"}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("without tables: %v", err)
	}
	if _, _, err := mysql.Migrate(r.Ctx, s.url); err != nil {
		t.Fatal(err)
	}
	r.BecomesReady()
	if !log.Has("innodb_flush_log_at_trx_commit is not 1") || !log.Has("sync_binlog is not 1") || !log.Has("the database keeps the locks") {
		t.Errorf("the log:\n%s", log)
	}
	if durability := r.Details()["durability"]; durability != "in a log that is written later" {
		t.Errorf("durability %q", durability)
	}
	m.Exec(t, "SET GLOBAL sql_select_limit = 100")
	s.start("limited").Refuses("sql_select_limit is 100")
	m.Exec(t, "SET GLOBAL sql_select_limit = DEFAULT")
	m.Exec(t, "SET GLOBAL read_only = ON")
	if _, err := r.SwapOne(cas.Swap{Key: "ns/key", Data: []byte("x")}); !store.Unavailable(err) || store.OutcomeUnknown(err) {
		t.Errorf("on a read-only server: %v", err)
	}
	r.Refuses("read-only")
	m.Exec(t, "SET GLOBAL read_only = OFF")
	r.BecomesReady()
	operator := s.session()
	operator.exec("ALTER TABLE locksidecar_letters ENGINE = MyISAM")
	s.start("two").Refuses("must be InnoDB")
}

// Several sidecars make the tables at the same time.
func TestAutoMigrate(t *testing.T) {
	t.Parallel()
	s := empty(t, shared)
	var working sync.WaitGroup
	for range 4 {
		working.Go(func() {
			b, err := mysql.NewServer(mysql.Config{ServerConfig: cas.ServerConfig{URL: s.url, Timeout: await.Patience}, AutoMigrate: true})
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
			defer cancel()
			if err := b.Start(ctx); err != nil || b.Ready() != nil {
				t.Errorf("%v, %v", err, b.Ready())
			}
		})
	}
	working.Wait()
	from, to, err := mysql.Migrate(context.Background(), s.url)
	if err != nil || from != 1 || to != 1 {
		t.Errorf("a migration from %d to %d: %v", from, to, err)
	}
}

// Tables that need a newer sidecar are not used, and the sidecar is told.
func TestTooOld(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	s.session().exec("UPDATE locksidecar_meta SET schema_version = 7, oldest = 6")
	told := make(chan error, 10)
	b, err := mysql.NewServer(mysql.Config{ServerConfig: cas.ServerConfig{URL: s.url}, AutoMigrate: true, TooOld: func(err error) { told <- err }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Stop)
	if err := b.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := await.Receive(t, told, "the sidecar is told"); !strings.Contains(err.Error(), "needs 6 or later") || b.Ready() == nil {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	authority := certtest.New(t)
	pair := authority.Issue("localhost", time.Now().Add(time.Hour))
	m := mysqltest.Start(t, mysqltest.WithFile("ca.pem", authority.PEM()), mysqltest.WithFile("cert.pem", pair.Cert), mysqltest.WithFile("key.pem", pair.Key),
		mysqltest.WithFlag("--ssl-ca=../ca.pem"), mysqltest.WithFlag("--ssl-cert=../cert.pem"), mysqltest.WithFlag("--ssl-key=../key.pem"))
	s := on(t, m)
	s.limit = time.Second
	m.Exec(t, "ALTER USER "+s.Name+" REQUIRE X509")
	own := certtest.Mount(t, authority.IssueClient("sidecar"))
	authorities := certtest.MountFiles(t, map[string][]byte{"ca.crt": authority.PEM(), "other.crt": certtest.New(t).PEM()})
	files := "&cert=" + own.CertFile() + "&key=" + own.KeyFile()
	url := strings.Replace(s.url, "127.0.0.1", "localhost", 1)
	s.url = url + "?tls=true&cacert=" + authorities.File("ca.crt") + files
	r := s.ready("one")
	r.Write("one", 1)
	r.Reads(1)
	s.url = url + "?cacert=" + authorities.File("other.crt") + files
	s.start("two").Refuses("certificate signed by unknown authority")
	s.url = url + "?cacert=" + authorities.File("ca.crt")
	s.start("three").Refuses("Access denied")
	s.url = url
	s.start("four").Refuses("Access denied")
	s.url = url + "?tls=skip-verify" + files
	s.ready("five")
}

// The server may keep a password in each usual way, with TLS and without. The first connection proves the password in full, because
// MySQL remembers it afterwards.
func TestPasswords(t *testing.T) {
	t.Parallel()
	ways := []string{"mysql_native_password"}
	if mysqltest.IsMySQL() {
		ways = []string{"caching_sha2_password", "sha256_password"}
	}
	authority := certtest.New(t)
	pair := authority.Issue("localhost", time.Now().Add(time.Hour))
	m := mysqltest.Start(t, mysqltest.WithFile("cert.pem", pair.Cert), mysqltest.WithFile("key.pem", pair.Key),
		mysqltest.WithFlag("--ssl-cert=../cert.pem"), mysqltest.WithFlag("--ssl-key=../key.pem"))
	for _, way := range ways {
		for _, encryption := range []string{"", "?tls=skip-verify"} {
			s := empty(t, m)
			m.Exec(t, "ALTER USER "+s.Name+" IDENTIFIED WITH "+way+" "+passwordIs(s.Name))
			s.url += encryption
			if _, _, err := mysql.Migrate(t.Context(), s.url); err != nil {
				t.Errorf("%s %s: %v", way, encryption, err)
				continue
			}
			s.ready("one").Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
		}
	}
}

// passwordIs continues IDENTIFIED WITH.
func passwordIs(password string) string {
	if mysqltest.IsMySQL() {
		return "BY '" + password + "'"
	}
	return "USING PASSWORD('" + password + "')"
}

// A password may be replaced, and the error never shows it.
func TestUsers(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	urls := make(chan string, 1)
	wrong := strings.Replace(s.url, ":"+s.Name+"@", ":s3cret@", 1)
	urls <- wrong
	server, err := mysql.NewServer(mysql.Config{ServerConfig: cas.ServerConfig{URL: wrong, Timeout: time.Second, Again: func() (string, error) {
		now := <-urls
		urls <- now
		return now, nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	b := castest.Only(t, server, "one").(*mysql.Backend)
	r := &rig{b, castest.Start(t, b)}
	r.Refuses("refuses the user")
	if strings.Contains(b.Ready().Error(), "s3cret") {
		t.Errorf("the error has the password: %v", b.Ready())
	}
	<-urls
	urls <- s.url
	r.BecomesReady()
	r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
}

// Of several hosts, the first that is not read-only is used.
func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	replica := mysqltest.Start(t, mysqltest.WithFlag("--read-only=ON"))
	s := on(t, shared)
	replica.Exec(t, "CREATE DATABASE "+s.Name+"; CREATE USER "+s.Name+" IDENTIFIED BY '"+s.Name+"'; GRANT ALL ON *.* TO "+s.Name)
	gone := mysqltest.Start(t)
	gone.Kill()
	s.url = s.At(gone.Address + "," + replica.Address + "," + shared.Address)
	r := s.ready("one")
	r.Done(cas.Swap{Key: "ns/key", Data: []byte("x")})
}
