package inject

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeCluster keeps Secrets and the CA of the webhook's configuration. test/k8s uses a real API server.
type fakeCluster struct {
	t       *testing.T
	secrets map[string]keyPair
	bundle  []byte
	writes  []string
	refuse  string // a path that may not be written
}

func (f *fakeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer secret-token" {
		f.t.Errorf("%s %s has no token", r.Method, r.URL)
	}
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.t.Error(err)
	}
	switch {
	case r.Method == http.MethodPatch && name == f.refuse:
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"message":"you may not"}`)
	case r.Method == http.MethodGet:
		secret, known := f.secrets[name]
		if !known {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"data": secret}); err != nil {
			f.t.Error(err)
		}
	case name == configurationName:
		var patch struct {
			Webhooks []struct {
				ClientConfig struct {
					CABundle []byte `json:"caBundle"`
				} `json:"clientConfig"`
			} `json:"webhooks"`
		}
		if err := json.Unmarshal(body, &patch); err != nil || len(patch.Webhooks) != 2 {
			f.t.Errorf("%v: %s", err, body)
		}
		f.bundle = patch.Webhooks[1].ClientConfig.CABundle
	default:
		var secret struct {
			Data keyPair `json:"data"`
		}
		if err := json.Unmarshal(body, &secret); err != nil {
			f.t.Error(err)
		}
		f.secrets[name] = secret.Data
		f.writes = append(f.writes, name)
	}
}

func newFakeCluster(t *testing.T) (*fakeCluster, *Issuer) {
	f := &fakeCluster{t: t, secrets: map[string]keyPair{}}
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)
	return f, &Issuer{API: server.URL, Client: server.Client(), Token: "secret-token", Namespace: "apps"}
}

func TestIssuerRenewsOnlyWhatCannotBeUsed(t *testing.T) {
	f, issuer := newFakeCluster(t)
	_, other := newFakeCluster(t)
	other.Namespace = "elsewhere"
	foreign, err := other.issue(authorityLife, nil)
	if err != nil {
		t.Fatal(err)
	}
	ca := func() *tls.Certificate {
		loaded, err := tls.X509KeyPair(f.secrets[authorityName].Cert, f.secrets[authorityName].Key)
		if err != nil {
			t.Fatal(err)
		}
		return &loaded
	}
	put := func(name string, life time.Duration, of *Issuer, signer func() *tls.Certificate) func() {
		return func() {
			var by *tls.Certificate
			if signer != nil {
				by = signer()
			}
			made, err := of.issue(life, by)
			if err != nil {
				t.Fatal(err)
			}
			f.secrets[name] = made
		}
	}
	for _, step := range []struct {
		name   string
		before func()
		writes []string
	}{
		{"nothing is there", func() {}, []string{authorityName, injectorName}},
		{"all is well", func() {}, nil},
		{"the certificate is in the last third", put(injectorName, certificateLife/3-time.Minute, issuer, ca), []string{injectorName}},
		{"the certificate is young enough", put(injectorName, certificateLife/3+time.Minute, issuer, ca), nil},
		{"the certificate is for another name", put(injectorName, certificateLife, other, ca), []string{injectorName}},
		{"the certificate signed itself", put(injectorName, certificateLife, issuer, nil), []string{injectorName}},
		{"the certificate is garbage", func() { f.secrets[injectorName] = keyPair{Cert: []byte("x")} }, []string{injectorName}},
		{"the CA is another one", func() { f.secrets[authorityName] = foreign }, []string{injectorName}},
		{"the CA is in the last third", put(authorityName, authorityLife/3-time.Minute, issuer, nil), []string{authorityName, injectorName}},
		{"the CA is no CA", put(authorityName, authorityLife, issuer, ca), []string{authorityName, injectorName}},
		{"the CA is gone", func() { delete(f.secrets, authorityName) }, []string{authorityName, injectorName}},
	} {
		step.before()
		f.writes, f.bundle = nil, nil
		until, err := issuer.Renew(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if !slices.Equal(f.writes, step.writes) {
			t.Errorf("%s: wrote %q, want %q", step.name, f.writes, step.writes)
		}
		if !bytes.Equal(f.bundle, f.secrets[authorityName].Cert) {
			t.Errorf("%s: the configuration has another CA", step.name)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(f.bundle)
		leaf, err := tls.X509KeyPair(f.secrets[injectorName].Cert, f.secrets[injectorName].Key)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if _, err := leaf.Leaf.Verify(x509.VerifyOptions{DNSName: "locksidecar-injector.apps.svc", Roots: pool}); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if !until.Equal(leaf.Leaf.NotAfter) || time.Until(until) < certificateLife/3 {
			t.Errorf("%s: valid until %s, said %s", step.name, leaf.Leaf.NotAfter, until)
		}
	}
}

func TestIssuerSaysWhatIsRefused(t *testing.T) {
	for _, name := range []string{authorityName, injectorName, configurationName} {
		f, issuer := newFakeCluster(t)
		f.refuse = name
		_, err := issuer.Renew(t.Context())
		if err == nil || !strings.Contains(err.Error(), name+": 403 Forbidden: you may not") || strings.Contains(err.Error(), "secret-token") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
