package inject

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
)

// Certificate is a certificate and its key in two files, and optionally the CA of clients in a third. The files
// may be replaced while it serves. The kubelet may replace a Secret's files between two reads, so only the
// contents count, and a pair that does not match is read again.
type Certificate struct {
	certFile, keyFile string
	clientCA          string // a file; empty: every client may call
	log               *slog.Logger
	// every is the least time between two reads of the files. A new connection causes a read, and the kubelet's
	// probes connect all the time.
	every time.Duration

	mu            sync.Mutex
	looked        time.Time
	cert, key, ca []byte
	pair          *tls.Certificate
	clients       *x509.CertPool
	// problem is why the files cannot be used now, logged once; empty if they can.
	problem string
}

// LoadCertificate reads the files, in PEM. Without clientCA, clients need no certificate. A later mistake is
// logged, and the certificate stays in use.
func LoadCertificate(certFile, keyFile, clientCA string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, clientCA: clientCA, log: log, every: time.Second, looked: time.Now()}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// read loads the files if their contents have changed.
func (c *Certificate) read() error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("the certificate: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("the certificate's key: %w", err)
	}
	var ca []byte
	if c.clientCA != "" {
		if ca, err = os.ReadFile(c.clientCA); err != nil {
			return fmt.Errorf("the CA of clients: %w", err)
		}
	}
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) && bytes.Equal(ca, c.ca) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("the certificate in %s with the key in %s: %w", c.certFile, c.keyFile, err)
	}
	clients := x509.NewCertPool()
	if c.clientCA != "" && !clients.AppendCertsFromPEM(ca) {
		return fmt.Errorf("the CA of clients in %s: there is no certificate in PEM", c.clientCA)
	}
	c.cert, c.key, c.ca, c.pair, c.clients = cert, key, ca, &pair, clients
	c.log.Info("certificate loaded", "file", c.certFile, "names", pair.Leaf.DNSNames, "not_after", pair.Leaf.NotAfter)
	return nil
}

// current returns the certificate, and the CA of clients, for a new handshake.
func (c *Certificate) current() (*tls.Certificate, *x509.CertPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < c.every {
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

// clientAuth is the TLS setting for client certificates. authenticate verifies them only when needed, because
// the kubelet's probes have none.
func (c *Certificate) clientAuth() tls.ClientAuthType {
	if c.clientCA == "" {
		return tls.NoClientCert
	}
	return tls.RequestClientCert
}

// authenticate returns an error if a client may not call. Without a CA of clients, every client may.
func (c *Certificate) authenticate(state *tls.ConnectionState) error {
	if c.clientAuth() == tls.NoClientCert {
		return nil
	}
	if len(state.PeerCertificates) == 0 {
		return errors.New("a review needs a client certificate of the CA that --client-ca names: see docs/kubernetes.md")
	}
	_, clients := c.current()
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

// valid returns an error if an API server would not trust the certificate at a time.
func (c *Certificate) valid(now time.Time) error {
	pair, _ := c.current()
	leaf := pair.Leaf
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate in %s has expired at %s", c.certFile, leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate in %s is valid from %s on", c.certFile, leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}
