package locksidecar_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

const tcpToken, otherToken = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"

// authority is a CA for one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	})
	a.file = write(t, "ca", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	return a
}

func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-2*time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// settings are those of a sidecar with a certificate.
func (a *authority) settings(name string, notAfter time.Time) map[string]string {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{DNSNames: []string{name}, NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return map[string]string{
		"TCP_ADDR":          "127.0.0.1:0",
		"TCP_TLS_CERT_FILE": write(a.t, "cert", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})),
		"TCP_TLS_KEY_FILE":  write(a.t, "key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"TCP_TOKEN_FILE":    write(a.t, "tokens", []byte(tcpToken)),
	}
}

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// portOf is the port at which a sidecar listens. Its log says it, soon after its first answer.
func portOf(t *testing.T, s *locksidecartest.Sidecar) string {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // another process tells nobody
		for line := range strings.Lines(s.Log()) {
			var serving struct {
				Msg string `json:"msg"`
				TCP string `json:"tcp"`
			}
			if json.Unmarshal([]byte(line), &serving) != nil || serving.Msg != "serving" {
				continue
			}
			_, port, err := net.SplitHostPort(serving.TCP)
			if err != nil {
				t.Fatal(err)
			}
			return port
		}
	}
	t.Fatalf("no address in the log:\n%s", s.Log())
	return ""
}

// over makes a client that Close closes after the test.
func over(t *testing.T, c locksidecar.Config) *locksidecar.Client {
	t.Helper()
	c.Reconnect = -1
	client := locksidecar.New(c)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Everything works over TLS as on the socket: locks, waits, losses.
func TestTCP(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	s := locksidecartest.Start(t, ca.settings("localhost", time.Now().Add(time.Hour)))
	token := write(t, "token", []byte(tcpToken+"\n"+otherToken+"\n"))
	settings := locksidecar.Config{URL: "https://localhost:" + portOf(t, s), TokenFile: token, CAFile: ca.file}
	one, two := over(t, settings), over(t, settings)
	lock, err := one.Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, got, err := two.TryAcquire(t.Context(), "k"); got || err != nil {
		t.Errorf("a second holder: %t, %v", got, err)
	}
	waited := make(chan error, 1)
	go func() {
		second, err := two.Acquire(t.Context(), "k", locksidecar.Wait(time.Minute))
		if err == nil {
			err = second.Release()
		}
		waited <- err
	}()
	if err := lock.Release(); err != nil {
		t.Error(err)
	}
	within(t, "the wait", func() {
		if err := <-waited; err != nil {
			t.Error(err)
		}
	})
	if lock, err = one.Acquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	s.Lose(t, "k")
	ends(t, "the lock's context", lock.Context().Done())
	if lock, err = one.Acquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	ends(t, "the lock's context", lock.Context().Done())
	if text := s.Log(); strings.Contains(text, tcpToken) {
		t.Errorf("the log shows the token:\n%s", text)
	}
}

// Proves: client many connections
// Above 64 connections that have shown no token, the sidecar ends the oldest. An app that begins with more calls loses none of them.
func TestTCPBeginsWithManyCalls(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	s := locksidecartest.Start(t, ca.settings("localhost", time.Now().Add(time.Hour)))
	client := over(t, locksidecar.Config{URL: "https://localhost:" + portOf(t, s), TokenFile: write(t, "token", []byte(tcpToken)), CAFile: ca.file})
	var calls sync.WaitGroup
	for i := range 300 {
		calls.Go(func() {
			lock, err := client.Acquire(t.Context(), fmt.Sprint("many:", i))
			if err == nil {
				err = lock.Release()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
}

// A token is read again when its file changes, so it is replaced without a restart.
func TestTCPTokenIsReadAgain(t *testing.T) {
	t.Parallel()
	s := locksidecartest.Start(t, map[string]string{"TCP_ADDR": "127.0.0.1:0", "TCP_TOKEN_FILE": write(t, "tokens", []byte(tcpToken))})
	file := write(t, "token", []byte(otherToken))
	c := over(t, locksidecar.Config{URL: "http://127.0.0.1:" + portOf(t, s), TokenFile: file})
	if _, err := c.Get(t.Context(), "k"); !errors.Is(err, locksidecar.ErrForbidden) {
		t.Errorf("with a wrong token: %v", err)
	}
	if err := os.WriteFile(file, []byte(tcpToken), 0o600); err != nil {
		t.Fatal(err)
	}
	within(t, "the right token", func() {
		for {
			if _, err := c.Get(t.Context(), "k"); err == nil {
				return
			}
			time.Sleep(20 * time.Millisecond) // neither the client nor the sidecar tells that it has read its file
		}
	})
}

// An error says what is wrong and which setting to look at. It never contains a token.
func TestTCPMistakes(t *testing.T) {
	t.Parallel()
	ca, other := newAuthority(t), newAuthority(t)
	good := locksidecartest.Start(t, ca.settings("localhost", time.Now().Add(time.Hour)))
	expired := locksidecartest.Start(t, ca.settings("localhost", time.Now().Add(-time.Hour)))
	elsewhere := locksidecartest.Start(t, ca.settings("sidecar.example", time.Now().Add(time.Hour)))
	plain := locksidecartest.Start(t, map[string]string{"TCP_ADDR": "127.0.0.1:0", "TCP_TOKEN_FILE": write(t, "tokens", []byte(tcpToken))})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, nobody, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	right := write(t, "token", []byte(tcpToken))
	at := "https://localhost:"
	for name, tt := range map[string]struct {
		config locksidecar.Config
		kind   error
		says   []string
	}{
		"wrong token":     {locksidecar.Config{URL: at + portOf(t, good), TokenFile: write(t, "token", []byte(otherToken)), CAFile: ca.file}, locksidecar.ErrForbidden, []string{"LOCKSIDECAR_TCP_TOKEN_FILE"}},
		"no token":        {locksidecar.Config{URL: at + portOf(t, good), CAFile: ca.file}, locksidecar.ErrForbidden, []string{"LOCKSIDECAR_TCP_TOKEN_FILE"}},
		"wrong CA":        {locksidecar.Config{URL: at + portOf(t, good), TokenFile: right, CAFile: other.file}, locksidecar.ErrUnavailable, []string{"LOCKSIDECAR_CA_FILE"}},
		"the system's CA": {locksidecar.Config{URL: at + portOf(t, good), TokenFile: right}, locksidecar.ErrUnavailable, []string{"LOCKSIDECAR_CA_FILE"}},
		"no CA file":      {locksidecar.Config{URL: at + portOf(t, good), TokenFile: right, CAFile: "/no/ca"}, locksidecar.ErrUnavailable, []string{"Config.CAFile", "/no/ca"}},
		"expired":         {locksidecar.Config{URL: at + portOf(t, expired), TokenFile: right, CAFile: ca.file}, locksidecar.ErrUnavailable, []string{"not valid now", "expired"}},
		"another name":    {locksidecar.Config{URL: at + portOf(t, elsewhere), TokenFile: right, CAFile: ca.file}, locksidecar.ErrUnavailable, []string{"sidecar.example", "LOCKSIDECAR_URL"}},
		"plain to TLS":    {locksidecar.Config{URL: "http://localhost:" + portOf(t, good), TokenFile: right}, locksidecar.ErrInvalidRequest, []string{"https://"}},
		"TLS to plain":    {locksidecar.Config{URL: at + portOf(t, plain), TokenFile: right, CAFile: ca.file}, locksidecar.ErrUnavailable, []string{"TLS", "LOCKSIDECAR_URL"}},
		"nobody listens":  {locksidecar.Config{URL: at + nobody, TokenFile: right, CAFile: ca.file}, locksidecar.ErrUnavailable, []string{"LOCKSIDECAR_TCP_ADDR", "LOCKSIDECAR_URL"}},
		"no token file":   {locksidecar.Config{URL: at + portOf(t, good), TokenFile: "/no/token"}, locksidecar.ErrInvalidRequest, []string{"Config.TokenFile", "/no/token"}},
		"odd token":       {locksidecar.Config{URL: at + portOf(t, good), TokenFile: write(t, "token", []byte("s3cret\rX: y"))}, locksidecar.ErrInvalidRequest, []string{"Config.TokenFile"}},
		"two places":      {locksidecar.Config{URL: at + "1", Socket: "/s"}, locksidecar.ErrInvalidRequest, []string{"Config.URL", "Config.Socket"}},
		"a password":      {locksidecar.Config{URL: "https://u:s3cret@localhost:1"}, locksidecar.ErrInvalidRequest, []string{"Config.URL"}},
		"no port":         {locksidecar.Config{URL: "https://localhost"}, locksidecar.ErrInvalidRequest, []string{"Config.URL", "https://HOST:PORT"}},
		"a path":          {locksidecar.Config{URL: "https://localhost:1/v1"}, locksidecar.ErrInvalidRequest, []string{"Config.URL"}},
		"a host and path": {locksidecar.Config{URL: "unix://host/s"}, locksidecar.ErrInvalidRequest, []string{"Config.URL", "unix:///PATH"}},
		"no scheme":       {locksidecar.Config{URL: "localhost:1"}, locksidecar.ErrInvalidRequest, []string{"Config.URL"}},
	} {
		for what, call := range map[string]func(c *locksidecar.Client) error{
			"connect": func(c *locksidecar.Client) error { return c.Connect(t.Context()) },
			"get":     func(c *locksidecar.Client) error { _, err := c.Get(t.Context(), "k"); return err },
		} {
			err := call(over(t, tt.config))
			if !errors.Is(err, tt.kind) {
				t.Errorf("%s, %s: %v is not %v", name, what, err, tt.kind)
				continue
			}
			for _, said := range tt.says {
				if !strings.Contains(err.Error(), said) {
					t.Errorf("%s, %s: no %q in %v", name, what, said, err)
				}
			}
			if strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), tcpToken) || strings.Contains(err.Error(), otherToken) {
				t.Errorf("%s shows a secret: %v", name, err)
			}
		}
	}
}

// A URL in code wins over all, a socket in code over the environment, and LOCKSIDECAR_URL over LOCKSIDECAR_SOCKET.
func TestWhichAddressWins(t *testing.T) {
	for _, tt := range []struct {
		config      locksidecar.Config
		url, socket string
		want        string
	}{
		{locksidecar.Config{}, "", "/env", "/env"},
		{locksidecar.Config{}, "http://127.0.0.1:1", "/env", "http://127.0.0.1:1"},
		{locksidecar.Config{}, "unix:///url", "/env", "/url"},
		{locksidecar.Config{}, "unix:///a%20b", "/env", "/a b"},
		{locksidecar.Config{Socket: "/code"}, "http://127.0.0.1:1", "/env", "/code"},
		{locksidecar.Config{URL: "https://[::1]:2/"}, "http://127.0.0.1:1", "/env", "https://[::1]:2"},
	} {
		t.Setenv("LOCKSIDECAR_URL", tt.url)
		t.Setenv("LOCKSIDECAR_SOCKET", tt.socket)
		if got := over(t, tt.config).Address(); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
	t.Setenv("LOCKSIDECAR_URL", "ftp://h:1")
	if _, err := over(t, locksidecar.Config{}).Get(t.Context(), "k"); !errors.Is(err, locksidecar.ErrInvalidRequest) || !strings.Contains(err.Error(), "LOCKSIDECAR_URL") {
		t.Error(err)
	}
}
