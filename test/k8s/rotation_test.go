package k8s

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// pair is a certificate of that age, with its key.
type pair struct {
	cert, key []byte // PEM
	leaf      *x509.Certificate
	private   *ecdsa.PrivateKey
}

// made makes a pair as `inject certificate` does: a CA, or what a CA signs for the webhook.
func made(t *testing.T, age, life time.Duration, ca *pair) *pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now().Add(-age)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "locksidecar-injector CA"}, BasicConstraintsValid: true, IsCA: ca == nil,
		NotBefore: begin.Add(-time.Hour), NotAfter: begin.Add(life), KeyUsage: x509.KeyUsageCertSign,
	}
	parent, signer := template, key
	if ca != nil {
		template.Subject.CommonName, template.DNSNames = webhookHost, []string{webhookHost}
		template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		parent, signer = ca.leaf, ca.private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &pair{
		cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), leaf: leaf, private: key,
	}
}

const (
	webhookHost = "locksidecar-injector.locksidecar.svc"
	year        = 365 * 24 * time.Hour
)

// TestCertificateRotation follows the replacement of a CA from run to run, with days in between. The API server calls the webhook after each
// step, as it is and with the certificate that a kubelet has not yet replaced. It calls it by its Service, so its name is checked.
func TestCertificateRotation(t *testing.T) {
	const ns = "locksidecar"
	ensureNamespace(t, ns)
	webhook := startMounted(t)
	oldCA := made(t, 7*year, 10*year, nil) // in its last third
	leaf := made(t, 24*time.Hour, 90*24*time.Hour, oldCA)
	write(t, "locksidecar-injector-ca", oldCA)
	write(t, "locksidecar-injector", leaf)
	webhook.mount(t, leaf.cert, leaf.key)
	installService(t, webhook.port)
	configuration := ofKind(t, "injector/webhook.yaml", "MutatingWebhookConfiguration")
	hooks, _, _ := unstructured.NestedSlice(configuration.Object, "webhooks")
	for _, w := range hooks {
		at(w, "clientConfig")["caBundle"] = encoded(oldCA.cert)
		at(w, "clientConfig", "service")["port"] = webhook.port
		w.(object)["timeoutSeconds"] = int64(30)
	}
	configuration.Object["webhooks"] = hooks
	probe := newProbe(t)
	install(t, configuration)
	probe.until(t, "injected", isInjected)
	works := func(step string, cas int) {
		t.Helper()
		known, err := client().AdmissionregistrationV1().MutatingWebhookConfigurations().Get(t.Context(), configuration.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range known.Webhooks {
			if n := bytes.Count(w.ClientConfig.CABundle, []byte("BEGIN CERTIFICATE")); n != cas {
				t.Errorf("%s: %s trusts %d CAs, want %d", step, w.Name, n, cas)
			}
			// The API server may keep a connection, for which it does not look at a new certificate.
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(w.ClientConfig.CABundle)
			if _, err := chainOf(t, fmt.Sprintf("127.0.0.1:%d", webhook.port))[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: webhookHost}); err != nil {
				t.Errorf("%s: %v", step, err)
			}
		}
		probe.until(t, "injected: "+step, isInjected)
	}
	certificate := func() (cert, key []byte) {
		t.Helper()
		secret, err := client().CoreV1().Secrets(ns).Get(t.Context(), "locksidecar-injector", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return secret.Data["tls.crt"], secret.Data["tls.key"]
	}

	runInPod(t, ns, "valid until", "inject", "certificate")
	works("the first run makes a CA", 2)
	if cert, _ := certificate(); !bytes.Equal(cert, leaf.cert) {
		t.Error("the new CA signs before all API servers trust it")
	}

	// A day later.
	newCA := made(t, 24*time.Hour, 10*year, nil)
	write(t, "locksidecar-injector-ca", newCA)
	trust(t, configuration.GetName(), newCA, oldCA)
	runInPod(t, ns, "valid until", "inject", "certificate")
	works("the second run makes a certificate, and no kubelet has it yet", 2)
	cert, key := certificate()
	if bytes.Equal(cert, leaf.cert) {
		t.Fatal("the second run makes no certificate")
	}
	webhook.mount(t, cert, key)
	works("kubelets have the new certificate", 2)
	runInPod(t, ns, "valid until", "inject", "certificate")
	works("a repetition changes nothing", 2)

	// Another day later.
	leaf = made(t, 24*time.Hour, 90*24*time.Hour, newCA)
	write(t, "locksidecar-injector", leaf)
	webhook.mount(t, leaf.cert, leaf.key)
	runInPod(t, ns, "valid until", "inject", "certificate")
	works("the third run takes the old CA away", 1)
	if cert, _ := certificate(); !bytes.Equal(cert, leaf.cert) {
		t.Error("the third run makes a certificate")
	}
}

// write puts a pair into a Secret, new or not.
func write(t *testing.T, name string, p *pair) {
	t.Helper()
	secrets := client().CoreV1().Secrets("locksidecar")
	_ = secrets.Delete(t.Context(), name, metav1.DeleteOptions{})
	_, err := secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": p.cert, "tls.key": p.key},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = secrets.Delete(context.Background(), name, metav1.DeleteOptions{}) })
}

// trust writes the CAs into the configuration.
func trust(t *testing.T, name string, cas ...*pair) {
	t.Helper()
	configurations := client().AdmissionregistrationV1().MutatingWebhookConfigurations()
	known, err := configurations.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range known.Webhooks {
		known.Webhooks[i].ClientConfig.CABundle = nil
		for _, ca := range cas {
			known.Webhooks[i].ClientConfig.CABundle = append(known.Webhooks[i].ClientConfig.CABundle, ca.cert...)
		}
	}
	if _, err := configurations.Update(t.Context(), known, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// mounted is the injector with the files of a Secret.
type mounted struct {
	folder string
	port   int64
}

// startMounted starts it with a certificate that nobody trusts, and returns when it serves.
func startMounted(t *testing.T) *mounted {
	t.Helper()
	m := &mounted{folder: t.TempDir()}
	self := made(t, 0, year, nil)
	m.put(t, self.cert, self.key)
	address, _ := serveWebhook(t, m.folder)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	if m.port, err = strconv.ParseInt(port, 10, 64); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *mounted) put(t *testing.T, cert, key []byte) {
	t.Helper()
	for name, content := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(m.folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// mount does what a kubelet does, and returns when new connections get the certificate.
func (m *mounted) mount(t *testing.T, cert, key []byte) {
	t.Helper()
	m.put(t, cert, key)
	block, _ := pem.Decode(cert)
	eventually(t, func() error {
		if shown := chainOf(t, fmt.Sprintf("127.0.0.1:%d", m.port))[0]; !bytes.Equal(shown.Raw, block.Bytes) {
			return fmt.Errorf("the injector still shows the certificate of %s", shown.NotBefore)
		}
		return nil
	})
}

// installService lets the API server find the injector by the name of its Service.
func installService(t *testing.T, port int64) {
	t.Helper()
	service := ofKind(t, "injector/webhook.yaml", "Service")
	service.Object["spec"] = object{"type": "ExternalName", "externalName": "localhost", "ports": list{object{"name": "https", "port": port}}}
	install(t, service)
}
