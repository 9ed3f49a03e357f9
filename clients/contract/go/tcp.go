package main

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

// tcp has the files of sidecars that are called over TCP, with TLS and a token: CONTRACT_OVER=tcp.
type tcp struct{ folder string }

func newTCP() (*tcp, error) {
	folder, err := os.MkdirTemp("", "ls-go")
	if err != nil {
		return nil, err
	}
	server := httptest.NewTLSServer(nil) // its certificate is for 127.0.0.1, and is its own CA
	defer server.Close()
	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string][]byte{
		"cert": cert, "key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), "token": []byte("0123456789abcdef0123456789abcdef"),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	return &tcp{folder}, nil
}

func (t *tcp) file(name string) string { return filepath.Join(t.folder, name) }

// add adds the settings of a sidecar. Its log has to say the port.
func (t *tcp) add(settings map[string]string) {
	maps.Copy(settings, map[string]string{
		"TCP_ADDR": "127.0.0.1:0", "TCP_TLS_CERT_FILE": t.file("cert"), "TCP_TLS_KEY_FILE": t.file("key"), "TCP_TOKEN_FILE": t.file("token"), "LOG_LEVEL": "info",
	})
}

// client is how to reach the sidecar.
func (t *tcp) client(s *locksidecartest.Sidecar) (locksidecar.Config, error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) { // another process tells nobody
		for line := range strings.Lines(s.Log()) {
			var serving struct {
				Msg string `json:"msg"`
				TCP string `json:"tcp"`
			}
			if json.Unmarshal([]byte(line), &serving) == nil && serving.Msg == "serving" {
				return locksidecar.Config{URL: "https://" + serving.TCP, TokenFile: t.file("token"), CAFile: t.file("cert")}, nil
			}
		}
	}
	return locksidecar.Config{}, errors.New("no address in its log:\n" + s.Log())
}
