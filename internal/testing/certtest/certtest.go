// Package certtest makes certificates for tests. It keeps them in a folder like the kubelet keeps a
// Secret: one symlink replaces all files at once.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
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

// PEM returns the CA's own certificate.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Pool returns a pool that trusts only this CA.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Issue makes a server's certificate for a name, with its own serial number. The certificate begins
// an hour ago.
func (a *Authority) Issue(name string, notAfter time.Time) Pair {
	a.t.Helper()
	return a.issue(&x509.Certificate{
		DNSNames: []string{name}, NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// IssueFor is Issue for an address.
func (a *Authority) IssueFor(ip string, notAfter time.Time) Pair {
	a.t.Helper()
	return a.issue(&x509.Certificate{
		IPAddresses: []net.IP{net.ParseIP(ip)}, NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// IssueClient makes a client's certificate with a name for an hour.
func (a *Authority) IssueClient(name string) Pair {
	a.t.Helper()
	return a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) issue(template *x509.Certificate) Pair {
	a.t.Helper()
	a.issued++
	template.SerialNumber, template.NotBefore = big.NewInt(a.issued), time.Now().Add(-time.Hour)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	key := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
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

// Secret is a mounted Secret.
type Secret struct {
	t       testing.TB
	folder  string
	version int
}

// Mount mounts a Secret of type kubernetes.io/tls with a pair.
func Mount(t testing.TB, pair Pair) *Secret {
	t.Helper()
	return MountFiles(t, pair.files())
}

// MountFiles mounts a Secret with files of these names.
func MountFiles(t testing.TB, files map[string][]byte) *Secret {
	t.Helper()
	s := &Secret{t: t, folder: t.TempDir()}
	s.Replace(files)
	for name := range files {
		s.must(os.Symlink(filepath.Join("..data", name), s.File(name)))
	}
	return s
}

func (p Pair) files() map[string][]byte {
	return map[string][]byte{"tls.crt": p.Cert, "tls.key": p.Key}
}

// File returns the path of a file.
func (s *Secret) File(name string) string { return filepath.Join(s.folder, name) }

// CertFile returns the path of the certificate.
func (s *Secret) CertFile() string { return s.File("tls.crt") }

// KeyFile returns the path of the key.
func (s *Secret) KeyFile() string { return s.File("tls.key") }

// Update replaces the pair.
func (s *Secret) Update(pair Pair) {
	s.t.Helper()
	s.Replace(pair.files())
}

// Replace replaces the files like the kubelet: it makes a new folder, renames a symlink over
// ..data, and removes the old folder.
func (s *Secret) Replace(files map[string][]byte) {
	s.t.Helper()
	data := s.File("..data")
	before, _ := os.Readlink(data) // missing the first time
	s.version++
	version := "..version_" + strconv.Itoa(s.version)
	s.must(os.Mkdir(s.File(version), 0o700))
	for name, content := range files {
		s.must(os.WriteFile(filepath.Join(s.folder, version, name), content, 0o600))
	}
	s.must(os.Symlink(version, data+"_tmp"))
	s.must(os.Rename(data+"_tmp", data))
	if before != "" {
		s.must(os.RemoveAll(s.File(before)))
	}
}

func (s *Secret) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
