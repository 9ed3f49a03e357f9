package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

const tcpToken, nextToken = "tcp-7d20e95b1c4f4f0f8a3e6b92d1c05a77", "tcp-e3a18c6400b24d5c9f7716d8a40b9c12"

// overTLS connects to a sidecar's TCP address.
func overTLS(t *testing.T, addr string, ca *certtest.Authority) (*app, int64) {
	t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"})
	if err != nil {
		t.Fatal(err)
	}
	a := &app{t: t, Conn: wire.New(c)}
	t.Cleanup(a.close)
	return a, c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func bearer(token string) string { return "Authorization: Bearer " + token }

// TestTCPForOthers: with TLS and a token, a sidecar serves an address that others reach. Certificate and token are replaced without a restart,
// and the token is in no log, answer, metric, argument or stack.
// Proves: threat tcp
func TestTCPForOthers(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	pair := ca.Issue("localhost", time.Now().Add(time.Hour))
	secret := certtest.Mount(t, pair)
	tokens := filepath.Join(t.TempDir(), "tokens")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(tokens+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tokens+".new", tokens); err != nil {
			t.Fatal(err)
		}
	}
	write(tcpToken)
	s := start(t, options{
		"STORE_URL": "memory://", "TCP_ADDR": "0.0.0.0:0", "TCP_TLS_CERT_FILE": secret.CertFile(), "TCP_TLS_KEY_FILE": secret.KeyFile(),
		"TCP_TOKEN_FILE": tokens, "ADMIN_ADDR": "127.0.0.1:0",
	})
	tcp, admin := s.listening()
	_, port, _ := net.SplitHostPort(tcp)
	tcp = "127.0.0.1:" + port

	a, serial := overTLS(t, tcp, ca)
	a.acquire("a", "", bearer(tcpToken))
	stranger, _ := overTLS(t, tcp, ca)
	stranger.call("PUT", lockPath("b"), "", bearer(nextToken)).want(401, "unauthorized")
	plain, err := net.Dial("tcp", tcp)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	fmt.Fprintf(plain, "GET /v1 HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", bearer(tcpToken))
	if line, _ := bufio.NewReader(plain).ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 400 ") {
		t.Errorf("without TLS: %q", line)
	}

	write(tcpToken + "\n" + nextToken + "\n")
	s.await("the next token", func() bool {
		c, _ := overTLS(t, tcp, ca)
		return c.call("GET", lockPath("a"), "", bearer(nextToken)).status == 200
	})
	a.call("GET", lockPath("a"), "", bearer(tcpToken)).want(200, "")
	write(nextToken)
	s.await("the end of the first token", func() bool {
		c, _ := overTLS(t, tcp, ca)
		return c.call("GET", lockPath("a"), "", bearer(tcpToken)).status == 401
	})
	a.call("GET", lockPath("a"), "", bearer(nextToken)).want(200, "")
	secret.Update(ca.Issue("localhost", time.Now().Add(time.Hour)))
	s.await("the next certificate", func() bool {
		_, now := overTLS(t, tcp, ca)
		return now != serial
	})
	a.call("GET", lockPath("a"), "", bearer(nextToken)).want(200, "") // its connection goes on

	argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	hidden := secrets{"a token": tcpToken, "the next token": nextToken, "a key": string(pair.Key[60:100])}
	hidden.notIn(t, "the list of processes", string(argv))
	hidden.notIn(t, "the figures", answerOf(t, "http://"+admin+"/metrics"))
	s.signal(syscall.SIGQUIT)
	s.wait()
	hidden.notIn(t, "the log", s.log.String())
}

// TestTCPFilesAreChecked: a sidecar does not start with a secret that every user of the machine may read, and says which.
// Proves: threat tcp
func TestTCPFilesAreChecked(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t)
	pair := ca.Issue("localhost", time.Now().Add(time.Hour))
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key, token := file("cert", string(pair.Cert), 0o644), file("key", string(pair.Key), 0o640), file("token", tcpToken, 0o400)
	for name, tt := range map[string]struct {
		o    options
		says []string
	}{
		"open key":   {options{"TCP_TLS_KEY_FILE": file("openkey", string(pair.Key), 0o644)}, []string{"LOCKSIDECAR_TCP_TLS_KEY_FILE", "openkey", "every user"}},
		"open token": {options{"TCP_TOKEN_FILE": file("opentoken", tcpToken, 0o644)}, []string{"LOCKSIDECAR_TCP_TOKEN_FILE", "opentoken", "every user"}},
		"no token":   {options{"TCP_TOKEN_FILE": filepath.Join(dir, "none")}, []string{"LOCKSIDECAR_TCP_TOKEN_FILE", "no such file"}},
		"short":      {options{"TCP_TOKEN_FILE": file("short", "short", 0o600)}, []string{"LOCKSIDECAR_TCP_TOKEN_FILE", "5 bytes", "32 to 512"}},
		"other key":  {options{"TCP_TLS_KEY_FILE": file("otherkey", string(ca.Issue("localhost", time.Now().Add(time.Hour)).Key), 0o600)}, []string{"LOCKSIDECAR_TCP_TLS_CERT_FILE", "otherkey"}},
		"insecure":   {options{"TCP_TLS_CERT_FILE": "", "TCP_TLS_KEY_FILE": ""}, []string{"LOCKSIDECAR_TCP_ADDR", "LOCKSIDECAR_TCP_INSECURE=true"}},
		"tokenless":  {options{"TCP_TOKEN_FILE": ""}, []string{"LOCKSIDECAR_TCP_ADDR", "LOCKSIDECAR_TCP_TOKEN_FILE"}},
	} {
		o := options{"STORE_URL": "memory://", "TCP_ADDR": "0.0.0.0:0", "TCP_TLS_CERT_FILE": cert, "TCP_TLS_KEY_FILE": key, "TCP_TOKEN_FILE": token}
		maps.Copy(o, tt.o)
		s := launch(t, folder(t), o)
		code := s.wait()
		for _, said := range tt.says {
			if code != exitcode.Config || !strings.Contains(s.log.String(), said) {
				t.Errorf("%s: exit code %d, no %q in\n%s", name, code, said, s.log)
			}
		}
		secrets{"a token": tcpToken}.notIn(t, name, s.log.String())
	}
}
