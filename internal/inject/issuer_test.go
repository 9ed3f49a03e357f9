package inject

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/internal/kubeapi"
)

// fakeCluster keeps Secrets and the CAs of the webhook's configuration, in memory. test/k8s uses a real API server.
type fakeCluster struct {
	t        *testing.T
	secrets  map[string]keyPair
	bundle   []byte
	versions map[string]int
	writes   []string
	refuse   string             // an object that may not be written
	before   func(write string) // called before a write
}

// RoundTrip implements [http.RoundTripper] without a network, which would not stop virtual time.
func (f *fakeCluster) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	f.serve(answer, r)
	return answer.Result(), nil
}

func (f *fakeCluster) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer secret-token" {
		f.t.Errorf("%s %s has no token", r.Method, r.URL)
	}
	name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	var in struct {
		Metadata struct {
			Name            string `json:"name"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Data     keyPair `json:"data"`
		Webhooks []hook  `json:"webhooks"`
	}
	if r.Method != http.MethodGet {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			f.t.Error(err)
		}
		if err := json.Unmarshal(body, &in); err != nil {
			f.t.Errorf("%v: %s", err, body)
		}
		if r.Method == http.MethodPost {
			name = in.Metadata.Name
		}
		if f.before != nil {
			f.before(name)
		}
	}
	metadata := map[string]any{"resourceVersion": strconv.Itoa(f.versions[name])}
	_, known := f.secrets[name]
	known = known || name == configurationName
	answer := func(status int, body any) {
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(body); err != nil {
			f.t.Error(err)
		}
	}
	switch {
	case r.Method == http.MethodGet && !known:
		answer(http.StatusNotFound, nil)
	case r.Method == http.MethodGet && name == configurationName:
		client := map[string]any{"caBundle": f.bundle, "service": map[string]any{"name": injectorName}}
		answer(http.StatusOK, map[string]any{"metadata": metadata, "webhooks": []any{
			map[string]any{"name": "pod.inject.locksidecar.dev", "clientConfig": client}, map[string]any{"name": "namespace.inject.locksidecar.dev", "clientConfig": client},
		}})
	case r.Method == http.MethodGet:
		answer(http.StatusOK, map[string]any{"metadata": metadata, "data": f.secrets[name]})
	case name == f.refuse:
		answer(http.StatusForbidden, map[string]any{"message": "you may not"})
	case known == (r.Method == http.MethodPost) || known && in.Metadata.ResourceVersion != strconv.Itoa(f.versions[name]):
		answer(http.StatusConflict, map[string]any{"message": "somebody else was here"})
	default:
		if name == configurationName {
			if len(in.Webhooks) != 2 || !bytes.Equal(in.Webhooks[0].ClientConfig.CABundle, in.Webhooks[1].ClientConfig.CABundle) {
				f.t.Errorf("%+v", in.Webhooks)
			}
			f.bundle = in.Webhooks[1].ClientConfig.CABundle
		} else {
			f.secrets[name] = in.Data
		}
		f.versions[name]++
		f.writes = append(f.writes, name)
		answer(http.StatusOK, nil)
	}
}

func newFakeCluster(t *testing.T) (*fakeCluster, *Issuer) {
	f := &fakeCluster{t: t, secrets: map[string]keyPair{}, versions: map[string]int{}}
	return f, &Issuer{API: &kubeapi.API{URL: "https://api", HTTP: &http.Client{Transport: f}, Token: "secret-token"}, Namespace: "apps"}
}

func (f *fakeCluster) pair(name string) *tls.Certificate {
	f.t.Helper()
	loaded, err := tls.X509KeyPair(f.secrets[name].Cert, f.secrets[name].Key)
	if err != nil {
		f.t.Fatal(err)
	}
	return &loaded
}

// accepts reports whether an API server that trusts the bundle accepts the certificate of a webhook now.
func accepts(bundle, certificate []byte) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	leaf, err := leafOf(certificate)
	if err != nil {
		return err
	}
	_, err = leaf.Verify(x509.VerifyOptions{DNSName: "locksidecar-injector.apps.svc", Roots: pool})
	return err
}

func leafOf(text []byte) (*x509.Certificate, error) {
	all := configuration{Webhooks: []hook{{ClientConfig: hookClient{text}}}}.trusted()
	if len(all) == 0 {
		return nil, errors.New("no certificate that is valid")
	}
	return all[0], nil
}

func TestIssuerRenewsOnlyWhatCannotBeUsed(t *testing.T) {
	f, issuer := newFakeCluster(t)
	_, other := newFakeCluster(t)
	other.Namespace = "elsewhere"
	ca := func() *tls.Certificate { return f.pair(authorityName) }
	put := func(name string, life time.Duration, of *Issuer, signer func() *tls.Certificate) func() {
		return func() {
			var by *tls.Certificate
			if signer != nil {
				by = signer()
			}
			made, err := of.make(life, by)
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
		cas    int // that API servers trust then
	}{
		{"nothing is there", func() {}, []string{authorityName, configurationName, injectorName}, 1},
		{"all is well", func() {}, nil, 1},
		{"the certificate is in the last third", put(injectorName, certificateLife/3-time.Minute, issuer, ca), []string{injectorName}, 1},
		{"the certificate is young enough", put(injectorName, certificateLife/3+time.Minute, issuer, ca), nil, 1},
		{"the certificate is for another name", put(injectorName, certificateLife, other, ca), []string{injectorName}, 1},
		{"the certificate signed itself", put(injectorName, certificateLife, issuer, nil), []string{injectorName}, 1},
		{"the certificate is garbage", func() { f.secrets[injectorName] = keyPair{Cert: []byte("x")} }, []string{injectorName}, 1},
		{"the certificate is gone", func() { delete(f.secrets, injectorName) }, []string{injectorName}, 1},
		{"the configuration is new", func() { f.bundle = nil }, []string{configurationName}, 1},
		{"the configuration has garbage", func() { f.bundle = append([]byte("x\n"), f.bundle...) }, []string{configurationName}, 1},
		// The certificate of the old CA stays for the overlap.
		{"the CA is another one", put(authorityName, authorityLife, other, nil), []string{configurationName}, 2},
		{"the CA is another one, still", func() {}, nil, 2},
		{"the CA is in the last third", put(authorityName, authorityLife/3-time.Minute, issuer, nil), []string{authorityName, configurationName}, 3},
		{"the CA is no CA", put(authorityName, authorityLife, issuer, ca), []string{authorityName, configurationName}, 4},
		{"the CA is gone", func() { delete(f.secrets, authorityName) }, []string{authorityName, configurationName}, 5},
		// Nobody trusts the old one any more, so a wait would help nobody.
		{"the CA and the configuration are gone", func() { delete(f.secrets, authorityName); f.bundle = nil }, []string{authorityName, configurationName, injectorName}, 1},
		{"the CA is gone, and the certificate ends", func() {
			put(injectorName, 2*overlap-time.Minute, issuer, ca)()
			delete(f.secrets, authorityName)
		}, []string{authorityName, configurationName, injectorName}, 2},
	} {
		step.before()
		f.writes = nil
		until, err := issuer.Renew(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if !slices.Equal(f.writes, step.writes) {
			t.Errorf("%s: wrote %q, want %q", step.name, f.writes, step.writes)
		}
		if err := accepts(f.bundle, f.secrets[injectorName].Cert); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if n := bytes.Count(f.bundle, []byte("BEGIN CERTIFICATE")); n != step.cas || !bytes.HasPrefix(f.bundle, f.secrets[authorityName].Cert) {
			t.Errorf("%s: the configuration has %d CAs, want %d, that of the Secret first", step.name, n, step.cas)
		}
		if leaf := f.pair(injectorName).Leaf; !until.Equal(leaf.NotAfter) || time.Until(until) < certificateLife/3 {
			t.Errorf("%s: valid until %s, said %s", step.name, leaf.NotAfter, until)
		}
	}
}

// API servers learn late of a configuration, and kubelets of a Secret. In forty years of runs, daily ones while a CA is replaced, with a CA that
// somebody deletes now and then, whoever is behind by less than the overlap still accepts the certificate, and is accepted.
func TestRotationRefusesNoReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, issuer := newFakeCluster(t)
		type seen struct {
			at   time.Time
			what []byte
		}
		var bundles, certificates []seen // those that somebody may still have, with the newest at the end
		note := func(all []seen, what []byte) []seen {
			now := time.Now()
			if len(all) == 0 || !bytes.Equal(all[len(all)-1].what, what) {
				all = append(all, seen{now, what})
			}
			for len(all) > 1 && now.Sub(all[1].at) > overlap-time.Minute { // the second one is known to all
				all = all[1:]
			}
			return all
		}
		most, deleted, authorities := 0, 0, map[string]bool{}
		for day := 0; day < 40*365; day++ {
			if day/3000 > deleted {
				deleted++
				delete(f.secrets, authorityName)
			}
			for hour := range 24 {
				if hour < 2 { // a run may be repeated soon
					if _, err := issuer.Renew(t.Context()); err != nil {
						t.Fatalf("day %d: %v", day, err)
					}
				}
				bundles, certificates = note(bundles, f.bundle), note(certificates, f.secrets[injectorName].Cert)
				if len(bundles)+len(certificates) > 2 || hour == 0 {
					for _, b := range bundles {
						for _, c := range certificates {
							if err := accepts(b.what, c.what); err != nil {
								t.Fatalf("day %d: a configuration of %s and a certificate of %s: %v", day, b.at, c.at, err)
							}
						}
					}
				}
				time.Sleep(time.Hour)
			}
			authorities[string(f.secrets[authorityName].Cert)] = true
			trusted := bytes.Count(f.bundle, []byte("BEGIN CERTIFICATE"))
			most = max(most, trusted)
			if trusted == 1 { // little happens for a while
				day += 20
				time.Sleep(20 * 24 * time.Hour)
			}
		}
		if len(authorities) < 8 || most != 2 {
			t.Errorf("%d CAs in forty years, at most %d of them trusted at a time; want several, and two", len(authorities), most)
		}
		if n := bytes.Count(f.bundle, []byte("BEGIN CERTIFICATE")); n != 1 {
			t.Errorf("%d CAs are trusted in the end", n)
		}
	})
}

// Of two runs at the same time, one fails rather than to leave a certificate that nobody trusts. Its repetition finds all well.
func TestIssuersDoNotOverwriteEachOther(t *testing.T) {
	for _, at := range []string{authorityName, configurationName, injectorName} {
		f, issuer := newFakeCluster(t)
		f.before = func(name string) {
			if name == at {
				f.before = nil
				if _, err := issuer.Renew(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
		if _, err := issuer.Renew(t.Context()); err == nil || !strings.Contains(err.Error(), "409 Conflict: somebody else was here") {
			t.Errorf("%s: %v", at, err)
		}
		if _, err := issuer.Renew(t.Context()); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		if err := accepts(f.bundle, f.secrets[injectorName].Cert); err != nil {
			t.Errorf("%s: %v", at, err)
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
