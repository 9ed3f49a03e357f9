package k8s

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestStale: of the pods of a cluster, `locksidecar inject --stale` lists those that an older release injected. It asks as kubectl does.
func TestStale(t *testing.T) {
	ns := namespace(t, nil)
	installInjector(t, deployed(t, "injector/policy.yaml")...)
	create := func(name string, annotations map[string]string) *unstructured.Unstructured {
		t.Helper()
		pod := podOf(name, optedIn, annotations)
		pod.SetNamespace(ns)
		stored, err := resourceOf(t, pod).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client().CoreV1().Pods(ns).Delete(context.Background(), name, metav1.DeleteOptions{}) })
		return stored
	}
	create("new", nil)
	create("pinned", map[string]string{"locksidecar.dev/image": "registry.example.com/locks:v0.0.9"})
	old := create("old", nil)
	annotations := old.GetAnnotations()
	annotations[versionAnnotation] = "v0.0.8"
	old.SetAnnotations(annotations)
	if _, err := resourceOf(t, old).Update(t.Context(), old, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	config := filepath.Join(t.TempDir(), "config")
	text, err := json.Marshal(map[string]any{
		"current-context": "c",
		"clusters":        list{object{"name": "c", "cluster": object{"server": admin().Host, "certificate-authority-data": encoded(serverCA(t))}}},
		"users":           list{object{"name": "u", "user": object{"token": admin().BearerToken}}},
		"contexts":        list{object{"name": "c", "context": object{"cluster": "c", "user": "u"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, exit := locksidecar(t, nil, "inject", "--stale", "--kubeconfig", config, "-n", ns)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if exit != 1 || len(lines) != 3 || !strings.HasPrefix(lines[0], "NAMESPACE") || !strings.Contains(lines[1], "old ") || !strings.Contains(lines[1], " v0.0.8 ") ||
		!strings.Contains(lines[2], "pinned ") || !strings.Contains(lines[2], " v0.0.9 ") || !strings.Contains(stderr, "2 of 3 running sidecars are older than v0.1.0") {
		t.Errorf("%d:\n%s%s", exit, stdout, stderr)
	}
	other := namespace(t, nil)
	if stdout, stderr, exit := locksidecar(t, nil, "inject", "--stale", "--kubeconfig", config, "-n", other); exit != 0 || !strings.Contains(stderr, "0 of 0") {
		t.Errorf("%d:\n%s%s", exit, stdout, stderr)
	}
	if err := os.WriteFile(config, []byte(strings.Replace(string(text), admin().BearerToken, "wrong", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, exit := locksidecar(t, nil, "inject", "--stale", "--kubeconfig", config); exit != 69 || !strings.Contains(stderr, "listing the pods: 401 Unauthorized") {
		t.Errorf("%d: %s", exit, stderr)
	}
}
