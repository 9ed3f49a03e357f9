// Package certificate reads a server's certificate again when its files change, for the TCP listener and the injector's webhook.
package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/secretfile"
)

// Certificate is a certificate and its key in two files, and optionally the CA of clients in a third. The files
// may be replaced while it serves. The kubelet may replace a Secret's files between two reads, so only the
// contents count, and a pair that does not match is read again.
type Certificate struct {
	// Every is the least time between two reads of the files. A new connection causes a read, and the kubelet's
	// probes connect all the time.
	Every time.Duration

	files Files
	log   *slog.Logger

	mu            sync.Mutex
	looked        time.Time
	cert, key, ca []byte
	pair          *tls.Certificate
	clients       *x509.CertPool
	// problem is why the files cannot be used now, logged once; empty if they can.
	problem string
}

// Files are what a certificate is read from, in PEM.
type Files struct {
	Cert, Key string
	// ClientCA is the CA of clients; empty: clients need no certificate.
	ClientCA string
	// Private: a key that every user may read is refused.
	Private bool
}

// Load reads the files. A later mistake is logged, and the certificate stays in use.
func Load(files Files, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{Every: time.Second, files: files, log: log, looked: time.Now()}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// read loads the files if their contents have changed.
func (c *Certificate) read() error {
	cert, err := os.ReadFile(c.files.Cert)
	if err != nil {
		return fmt.Errorf("the certificate: %w", err)
	}
	key, err := c.readKey()
	if err != nil {
		return fmt.Errorf("the certificate's key: %w", err)
	}
	var ca []byte
	if c.files.ClientCA != "" {
		if ca, err = os.ReadFile(c.files.ClientCA); err != nil {
			return fmt.Errorf("the CA of clients: %w", err)
		}
	}
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) && bytes.Equal(ca, c.ca) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("the certificate in %s with the key in %s: %w", c.files.Cert, c.files.Key, err)
	}
	clients := x509.NewCertPool()
	if c.files.ClientCA != "" && !clients.AppendCertsFromPEM(ca) {
		return fmt.Errorf("the CA of clients in %s: there is no certificate in PEM", c.files.ClientCA)
	}
	c.cert, c.key, c.ca, c.pair, c.clients = cert, key, ca, &pair, clients
	c.log.Info("certificate loaded", "file", c.files.Cert, "names", pair.Leaf.DNSNames, "not_after", pair.Leaf.NotAfter)
	return nil
}

func (c *Certificate) readKey() ([]byte, error) {
	if c.files.Private {
		return secretfile.Read(c.files.Key)
	}
	return os.ReadFile(c.files.Key)
}

// Current returns the certificate, and the CA of clients, for a new handshake.
func (c *Certificate) Current() (*tls.Certificate, *x509.CertPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < c.Every {
		return c.pair, c.clients
	}
	c.looked = time.Now()
	problem := ""
	if err := c.read(); err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != c.problem {
		c.log.Warn("the certificate's files cannot be used, so the previous one stays in use", "error", problem)
	}
	c.problem = problem
	return c.pair, c.clients
}

// ForClient is a [tls.Config.GetCertificate].
func (c *Certificate) ForClient(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, _ := c.Current()
	return pair, nil
}

// ClientAuth is the TLS setting for client certificates. Authenticate verifies them only when needed, because
// the kubelet's probes have none.
func (c *Certificate) ClientAuth() tls.ClientAuthType {
	if c.files.ClientCA == "" {
		return tls.NoClientCert
	}
	return tls.RequestClientCert
}

// Authenticate returns an error if a client may not call. Without a CA of clients, every client may.
func (c *Certificate) Authenticate(state *tls.ConnectionState) error {
	if c.ClientAuth() == tls.NoClientCert {
		return nil
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("a review needs a client certificate of the CA that --client-ca names: see docs/kubernetes.md")
	}
	_, clients := c.Current()
	between := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		between.AddCert(cert)
	}
	if _, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: clients, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return fmt.Errorf("the client certificate does not suit the CA that --client-ca names: %w", err)
	}
	return nil
}

// Valid returns an error if an API server would not trust the certificate at a time.
func (c *Certificate) Valid(now time.Time) error {
	pair, _ := c.Current()
	leaf := pair.Leaf
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate in %s has expired at %s", c.files.Cert, leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate in %s is valid from %s on", c.files.Cert, leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}
