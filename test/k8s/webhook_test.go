package k8s

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/cert"
)

// webhook starts the injector and returns its configuration from deploy/, as it is but for
// where it is and which CA it has.
func webhook(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	configuration, _ := startWebhook(t)
	return configuration
}

// startWebhook also returns how to stop the injector before the test ends.
func startWebhook(t *testing.T) (configuration *unstructured.Unstructured, stop func()) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	files := map[string][]byte{"tls.crt": certificate, "tls.key": key}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address, stop := serveWebhook(t, folder)
	configuration = ofKind(t, "injector/webhook.yaml", "MutatingWebhookConfiguration")
	pointTo(configuration, "https://"+address, certificate)
	return configuration, stop
}

// serveWebhook starts the injector with a certificate in that folder, and with the flags of its Deployment.
func serveWebhook(t *testing.T, folder string) (address string, stop func()) {
	t.Helper()
	containers, _, _ := unstructured.NestedSlice(ofKind(t, "injector/webhook.yaml", "Deployment").Object, "spec", "template", "spec", "containers")
	args, _, _ := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
	running, stopped := context.WithCancel(context.Background())
	cmd := exec.CommandContext(running, binary(), append(args, "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--shutdown-delay", "0s",
		"--certificate", filepath.Join(folder, "tls.crt"), "--key", filepath.Join(folder, "tls.key"))...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_LOG_FORMAT=json")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var serving struct{ Address string }
	for serving.Address == "" && lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), &serving); err != nil {
			t.Fatalf("%v: %s", err, lines.Text())
		}
	}
	if serving.Address == "" {
		t.Fatal("the injector did not start: ", cmd.Wait())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines.Scan() { // its log, which must be read
		}
		_ = cmd.Wait() // it was asked to end
	}()
	stop = func() { stopped(); <-ended }
	t.Cleanup(stop)
	return serving.Address, stop
}

// pointTo changes where the API server finds the webhooks, each under its own path, and lets it wait for them for as
// long as it can: the machine may be busy.
func pointTo(configuration *unstructured.Unstructured, url string, ca []byte) {
	webhooks, _, _ := unstructured.NestedSlice(configuration.Object, "webhooks")
	for _, w := range webhooks {
		path, _, _ := unstructured.NestedString(w.(map[string]any), "clientConfig", "service", "path")
		w.(map[string]any)["clientConfig"] = map[string]any{"url": url + path, "caBundle": encoded(ca)}
		w.(map[string]any)["timeoutSeconds"] = int64(30)
	}
	configuration.Object["webhooks"] = webhooks
}

func encoded(bytes []byte) string {
	text, _ := json.Marshal(bytes) // base64, in quotes
	return strings.Trim(string(text), `"`)
}
