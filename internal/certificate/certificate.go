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
	"time"

	"github.com/locksidecar/locksidecar/internal/reload"
	"github.com/locksidecar/locksidecar/internal/secretfile"
)

// Certificate is a certificate and its key in two files, and optionally the CA of clients in a third. The files
// may be replaced while it serves. The kubelet may replace a Secret's files between two reads, so only the
// contents count, and a pair that does not match is read again.
type Certificate struct {
	// Value reads again when somebody connects, and the kubelet's probes connect all the time.
	*reload.Value[loaded]

	files Files
}

type loaded struct {
	cert, key, ca []byte // the contents of the files
	pair          *tls.Certificate
	clients       *x509.CertPool
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
	value, err := reload.Load(func(before loaded) (loaded, error) { return files.read(before, log) }, log,
		"the certificate's files cannot be used, so the previous one stays in use")
	return &Certificate{value, files}, err
}

// read loads the files if their contents have changed.
func (f Files) read(before loaded, log *slog.Logger) (loaded, error) {
	now := loaded{clients: x509.NewCertPool()}
	var err error
	if now.cert, err = os.ReadFile(f.Cert); err != nil {
		return before, fmt.Errorf("the certificate: %w", err)
	}
	if now.key, err = f.readKey(); err != nil {
		return before, fmt.Errorf("the certificate's key: %w", err)
	}
	if f.ClientCA != "" {
		if now.ca, err = os.ReadFile(f.ClientCA); err != nil {
			return before, fmt.Errorf("the CA of clients: %w", err)
		}
	}
	if before.pair != nil && bytes.Equal(now.cert, before.cert) && bytes.Equal(now.key, before.key) && bytes.Equal(now.ca, before.ca) {
		return before, nil
	}
	pair, err := tls.X509KeyPair(now.cert, now.key)
	if err != nil {
		return before, fmt.Errorf("the certificate in %s with the key in %s: %w", f.Cert, f.Key, err)
	}
	if f.ClientCA != "" && !now.clients.AppendCertsFromPEM(now.ca) {
		return before, fmt.Errorf("the CA of clients in %s: there is no certificate in PEM", f.ClientCA)
	}
	now.pair = &pair
	log.Info("certificate loaded", "file", f.Cert, "names", pair.Leaf.DNSNames, "not_after", pair.Leaf.NotAfter)
	return now, nil
}

func (f Files) readKey() ([]byte, error) {
	if f.Private {
		return secretfile.Read(f.Key)
	}
	return os.ReadFile(f.Key)
}

// Served returns the certificate for a new handshake.
func (c *Certificate) Served() *tls.Certificate { return c.Current().pair }

// ForClient is a [tls.Config.GetCertificate].
func (c *Certificate) ForClient(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.Served(), nil
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
	clients := c.Current().clients
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
	leaf := c.Served().Leaf
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate in %s has expired at %s", c.files.Cert, leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate in %s is valid from %s on", c.files.Cert, leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}
