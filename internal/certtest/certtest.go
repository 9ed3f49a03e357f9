// Package certtest makes certificates for tests, and keeps them in a folder as the kubelet
// keeps a Secret: all files are replaced at once, by one symlink.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Authority is a CA.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// issued is the serial number of the last certificate.
	issued int64
}

// Pair is a certificate and its key, in PEM.
type Pair struct{ Cert, Key []byte }

// New makes a CA.
func New(t testing.TB) *Authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{t: t, cert: cert, key: key, issued: 1}
}

// Pool trusts the CA, and nobody else.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue makes a server's certificate for a name, with a serial number of its own, that
// begins an hour ago.
func (a *Authority) Issue(name string, notAfter time.Time) Pair {
	a.t.Helper()
	a.issued++
	key := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(a.issued), DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Secret is a mounted Secret of type kubernetes.io/tls.
type Secret struct {
	t       testing.TB
	folder  string
	version int
}

// Mount mounts a Secret with a pair.
func Mount(t testing.TB, pair Pair) *Secret {
	t.Helper()
	s := &Secret{t: t, folder: t.TempDir()}
	s.Update(pair)
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(s.folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// CertFile is the path of the certificate.
func (s *Secret) CertFile() string { return filepath.Join(s.folder, "tls.crt") }

// KeyFile is the path of the key.
func (s *Secret) KeyFile() string { return filepath.Join(s.folder, "tls.key") }

// Update replaces the pair as the kubelet does: a new folder, a symlink that is renamed
// over ..data, and the folder before is removed.
func (s *Secret) Update(pair Pair) {
	s.t.Helper()
	data := filepath.Join(s.folder, "..data")
	before, _ := os.Readlink(data) // none at the first time
	s.version++
	version := "..version_" + strconv.Itoa(s.version)
	s.must(os.Mkdir(filepath.Join(s.folder, version), 0o700))
	s.must(os.WriteFile(filepath.Join(s.folder, version, "tls.crt"), pair.Cert, 0o600))
	s.must(os.WriteFile(filepath.Join(s.folder, version, "tls.key"), pair.Key, 0o600))
	s.must(os.Symlink(version, data+"_tmp"))
	s.must(os.Rename(data+"_tmp", data))
	if before != "" {
		s.must(os.RemoveAll(filepath.Join(s.folder, before)))
	}
}

func (s *Secret) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
