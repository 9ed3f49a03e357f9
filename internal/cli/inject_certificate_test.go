package cli

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
)

// Outside of a pod, or with a part of its service account missing, the command says what is missing. test/k8s runs it.
func TestInjectCertificateNeedsAPod(t *testing.T) {
	authority := certtest.New(t)
	refusing := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	refusing.StartTLS()
	defer refusing.Close()
	api, err := url.Parse(refusing.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		host  string
		files map[string]string
		code  int
		says  string
	}{
		{"", nil, exitcode.Config, "KUBERNETES_SERVICE_HOST is not set"},
		{api.Hostname(), nil, exitcode.Config, "the pod's service account: open"},
		{api.Hostname(), map[string]string{"token": "x"}, exitcode.Config, "the CA of the API server: open"},
		{api.Hostname(), map[string]string{"token": "x", "ca.crt": string(authority.PEM())}, exitcode.Config, "the pod's namespace: open"},
		{api.Hostname(), map[string]string{"token": "x", "ca.crt": "x", "namespace": "n"}, exitcode.Config, "ca.crt has no certificate"},
		{api.Hostname(), map[string]string{"token": "x", "ca.crt": string(authority.PEM()), "namespace": "n"}, exitcode.Unexpected, "reading the Secret locksidecar-injector-ca"},
	} {
		t.Setenv("KUBERNETES_SERVICE_HOST", test.host)
		t.Setenv("KUBERNETES_SERVICE_PORT", api.Port())
		account := t.TempDir()
		for name, content := range test.files {
			if err := os.WriteFile(filepath.Join(account, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := command("inject", "certificate", "--service-account", account)
		if exitcode.Of(err) != test.code || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: %v, want %q", test.files, err, test.says)
		}
	}
}
