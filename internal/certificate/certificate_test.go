package certificate_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/certificate"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
)

// Package inject tests that a certificate is read again when its files change. The suite e2e tests that a key which every user may read is refused.
func TestLoadsNoCertificate(t *testing.T) {
	ca := certtest.New(t)
	one, two := ca.Issue("localhost", time.Now().Add(time.Hour)), ca.Issue("localhost", time.Now().Add(time.Hour))
	load := func(pair certtest.Pair) (*certtest.Secret, error) {
		secret := certtest.Mount(t, pair)
		_, err := certificate.Load(certificate.Files{Cert: secret.CertFile(), Key: secret.KeyFile()}, slog.New(slog.DiscardHandler))
		return secret, err
	}
	for name, pair := range map[string]certtest.Pair{
		"another's key": {Cert: one.Cert, Key: two.Key},
		"half":          {Cert: one.Cert[:len(one.Cert)/2], Key: one.Key},
		"empty":         {},
	} {
		secret, err := load(pair)
		if err == nil || !strings.Contains(err.Error(), secret.CertFile()) || !strings.Contains(err.Error(), secret.KeyFile()) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	secret, err := load(one)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{secret.KeyFile(), secret.CertFile()} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		_, err = certificate.Load(certificate.Files{Cert: secret.CertFile(), Key: secret.KeyFile()}, slog.New(slog.DiscardHandler))
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), file) {
			t.Errorf("got %v", err)
		}
	}
}
