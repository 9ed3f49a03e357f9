package inject

import (
	"crypto/tls"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
)

// While the certificate is replaced, again and again, nobody who connects fails.
func TestReloadsWhileItIsUsed(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	var done atomic.Bool
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			last := int64(0)
			for !done.Load() {
				serial, err := c.serial()
				if err != nil || serial < last {
					t.Errorf("after number %d: number %d, %v", last, serial, err)
					return
				}
				last = serial
			}
		})
	}
	for range 20 {
		c.secret.Update(c.ca.Issue(serverName, time.Now().Add(time.Hour)))
		c.awaitNewest()
	}
	done.Store(true)
	clients.Wait()
}

// A pair that cannot be used changes nothing, and is said once.
func TestKeepsWhatWorks(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	first, err := c.serial()
	if err != nil {
		t.Fatal(err)
	}
	one, two := c.ca.Issue(serverName, time.Now().Add(time.Hour)), c.ca.Issue(serverName, time.Now().Add(time.Hour))
	const said = "the certificate's files cannot be used, so the previous one stays in use"
	for i, broken := range []certtest.Pair{
		{Cert: two.Cert, Key: one.Key}, {Cert: two.Cert[:len(two.Cert)/2], Key: two.Key}, {},
	} {
		c.secret.Update(broken)
		for range 3 {
			if serial, err := c.serial(); err != nil || serial != first {
				t.Errorf("number %d: number %d is served, %v", i, serial, err)
			}
		}
		if i == 0 && c.log.count(said) != 1 {
			t.Errorf("log:\n%s", c.log)
		}
	}
	if err := os.RemoveAll(c.secret.CertFile()); err != nil {
		t.Fatal(err)
	}
	if serial, err := c.serial(); err != nil || serial != first {
		t.Errorf("without the file: number %d, %v", serial, err)
	}
	if !c.log.has("no such file") {
		t.Errorf("log:\n%s", c.log)
	}
	if err := os.Symlink("..data/tls.crt", c.secret.CertFile()); err != nil {
		t.Fatal(err)
	}
	c.secret.Update(two)
	if serial, err := c.serial(); err != nil || serial != first+2 {
		t.Errorf("number %d is served, %v", serial, err)
	}
}

// The files are looked at once in a while, not for everybody who connects.
func TestLooksSeldom(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	first, err := c.serial()
	if err != nil {
		t.Fatal(err)
	}
	c.webhook.cfg.Certificate.Every = time.Hour
	c.secret.Update(c.ca.Issue(serverName, time.Now().Add(time.Hour)))
	if serial, err := c.serial(); err != nil || serial != first {
		t.Errorf("number %d, %v", serial, err)
	}
}

// Proves: threat webhook client
func TestRefusesOldTLS(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	old := &tls.Config{RootCAs: c.ca.Pool(), ServerName: serverName, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	if conn, err := tls.Dial("tcp", c.webhook.Addr().String(), old); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 is taken")
	}
}

// serial connects, and says which certificate it was shown.
func (c *cluster) serial() (int64, error) {
	conn, err := tls.Dial("tcp", c.webhook.Addr().String(), &tls.Config{RootCAs: c.ca.Pool(), ServerName: serverName})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

// awaitNewest connects until the certificate is another one: others look, too, and may have
// read the files before they were replaced.
func (c *cluster) awaitNewest() {
	c.t.Helper()
	want, err := tls.LoadX509KeyPair(c.secret.CertFile(), c.secret.KeyFile())
	if err != nil {
		c.t.Fatal(err)
	}
	within(c.t, "the new certificate", func() bool {
		serial, err := c.serial()
		return err == nil && serial == want.Leaf.SerialNumber.Int64()
	})
}
