package k8s

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// TestCertificateJob does what the Job of certificate-job.yaml does, twice: the server takes its certificate and its CA.
func TestCertificateJob(t *testing.T) {
	const ns = "locksidecar"
	ensureNamespace(t, ns)
	configuration := ofKind(t, "injector/webhook.yaml", "MutatingWebhookConfiguration")
	install(t, configuration)
	t.Cleanup(func() {
		for _, name := range []string{"locksidecar-injector", "locksidecar-injector-ca"} {
			_ = client().CoreV1().Secrets(ns).Delete(context.Background(), name, metav1.DeleteOptions{})
		}
	})
	first, bundle := issue(t, ns, configuration.GetName())
	second, same := issue(t, ns, configuration.GetName())
	if first != second || bundle != same {
		t.Error("a second run makes another certificate")
	}
}

// issue runs the command as in a pod, and returns the certificate and the CA that the API server trusts.
func issue(t *testing.T, ns, configuration string) (certificate, bundle string) {
	t.Helper()
	runInPod(t, ns, "valid until", "inject", "certificate")
	secret, err := client().CoreV1().Secrets(ns).Get(t.Context(), "locksidecar-injector", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	known, err := client().AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), configuration, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range known.Webhooks {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(w.ClientConfig.CABundle)
		service := w.ClientConfig.Service
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: service.Name + "." + service.Namespace + ".svc"}); err != nil {
			t.Errorf("%s: %v", w.Name, err)
		}
	}
	return string(secret.Data["tls.crt"]), string(known.Webhooks[0].ClientConfig.CABundle)
}

// runInPod runs the command as in a pod with all rights, and wants to read that.
func runInPod(t *testing.T, ns, says string, args ...string) {
	t.Helper()
	api, err := url.Parse(admin().Host)
	if err != nil {
		t.Fatal(err)
	}
	account := t.TempDir()
	for name, content := range map[string][]byte{"token": []byte(admin().BearerToken), "ca.crt": serverCA(t), "namespace": []byte(ns)} {
		if err := os.WriteFile(filepath.Join(account, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), binary(), append(args, "--service-account", account)...)
	command.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+api.Hostname(), "KUBERNETES_SERVICE_PORT="+api.Port())
	if out, err := command.CombinedOutput(); err != nil || !strings.Contains(string(out), says) {
		t.Fatalf("%v\n%s", err, out)
	}
}

// serverCA is the CA of the API server's certificate.
func serverCA(t *testing.T) []byte {
	t.Helper()
	api, err := url.Parse(admin().Host)
	if err != nil {
		t.Fatal(err)
	}
	chain := chainOf(t, api.Host)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain[len(chain)-1].Raw})
}

// chainOf returns the certificates that a server shows.
func chainOf(t *testing.T, address string) []*x509.Certificate {
	t.Helper()
	connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) // to see them
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	return connection.ConnectionState().PeerCertificates
}

// ofKind returns the object of that kind in a file of deploy/.
func ofKind(t *testing.T, file, kind string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range deployed(t, file) {
		if o.GetKind() == kind {
			return o
		}
	}
	t.Fatalf("%s has no %s", file, kind)
	return nil
}

// TestCertificateJobMayDoNoMore: the Job's roles allow the calls that it makes, and no others.
// Proves: threat certificate job
func TestCertificateJobMayDoNoMore(t *testing.T) {
	var rules []rbacv1.PolicyRule
	for _, o := range strictly(t, "injector/certificate-job.yaml") {
		switch o := o.(type) {
		case *rbacv1.Role:
			rules = append(rules, o.Rules...)
		case *rbacv1.ClusterRole:
			rules = append(rules, o.Rules...)
		}
	}
	for _, c := range []struct {
		verb, group, resource, name string
		allowed                     bool
	}{
		{"get", "", "secrets", "locksidecar-injector", true},
		{"get", "", "secrets", "locksidecar-injector-ca", true},
		{"patch", "", "secrets", "locksidecar-injector", true},
		{"patch", "", "secrets", "locksidecar-injector-ca", true},
		{"create", "", "secrets", "locksidecar-injector", true}, // as a patch that creates is authorized, too
		{"get", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "0-locksidecar-injector", true},
		{"patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "0-locksidecar-injector", true},
		{"get", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "other", false},
		{"get", "", "secrets", "other", false},
		{"list", "", "secrets", "", false},
		{"delete", "", "secrets", "locksidecar-injector", false},
		{"patch", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "other", false},
		{"create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", false},
		{"get", "", "pods", "x", false},
	} {
		call := authorizer.AttributesRecord{Verb: c.verb, APIGroup: c.group, APIVersion: "v1", Resource: c.resource, Name: c.name, ResourceRequest: true}
		if got := rbac.RulesAllow(call, rules...); got != c.allowed {
			t.Errorf("%s %s %q: allowed %t, want %t", c.verb, c.resource, c.name, got, c.allowed)
		}
	}
}
