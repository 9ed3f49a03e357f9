package inject

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Certificate is a certificate and its key in two files, which may be replaced while it
// serves. The kubelet replaces all files of a Secret at once, but between two reads; so
// the content counts, and a pair that does not belong together is looked at again.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger
	// every is how often the files are looked at, at most. That is done when somebody
	// connects, as the kubelet's probes do all the time.
	every time.Duration

	mu        sync.Mutex
	looked    time.Time
	cert, key []byte
	pair      *tls.Certificate
	// problem is why the files cannot be used now, said once; empty: they can.
	problem string
}

// LoadCertificate reads the files, in PEM. What is wrong later is logged, and the
// certificate stays as it was.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: log, every: time.Second, looked: time.Now()}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// read takes the pair in the files, if it is another one.
func (c *Certificate) read() error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("the certificate: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("the certificate's key: %w", err)
	}
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("the certificate in %s with the key in %s: %w", c.certFile, c.keyFile, err)
	}
	c.cert, c.key, c.pair = cert, key, &pair
	c.log.Info("certificate loaded", "file", c.certFile, "names", pair.Leaf.DNSNames, "not_after", pair.Leaf.NotAfter)
	return nil
}

// current is the pair to be used now.
func (c *Certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < c.every {
		return c.pair
	}
	c.looked = time.Now()
	problem := ""
	if err := c.read(); err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != c.problem {
		c.log.Warn("the certificate's files cannot be used, the one before stays", "error", problem)
	}
	c.problem = problem
	return c.pair
}

// valid says why an API server would not trust the certificate at a time.
func (c *Certificate) valid(now time.Time) error {
	leaf := c.current().Leaf
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate in %s has expired at %s", c.certFile, leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate in %s is valid from %s on", c.certFile, leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}
