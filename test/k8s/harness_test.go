package k8s

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

// namespace returns the name of a new namespace. It has the service account that a
// cluster's controller makes; that one mounts no token, because the token's volume has a
// random name, which differs from pod to pod.
func namespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	created, err := client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addServiceAccount(t, created.Name)
	return created.Name
}

func addServiceAccount(t *testing.T, namespace string) {
	t.Helper()
	noToken := false
	_, err := client().CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta:                   metav1.ObjectMeta{Name: "default"},
		AutomountServiceAccountToken: &noToken,
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// deployed returns the objects of a file in deploy/.
func deployed(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, "deploy", file))
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, content)
}

// decode returns the objects of a YAML stream.
func decode(t *testing.T, stream []byte) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(stream), 4096)
	for {
		var content map[string]any
		switch err := decoder.Decode(&content); {
		case errors.Is(err, io.EOF):
			return objects
		case err != nil:
			t.Fatal(err)
		case content != nil: // not only comments
			objects = append(objects, &unstructured.Unstructured{Object: content})
		}
	}
}

// install creates the objects, strictly, and deletes them after the test. Policies and
// webhooks take effect, and end, a moment later: see eventually.
func install(t *testing.T, objects ...*unstructured.Unstructured) {
	t.Helper()
	for _, o := range objects {
		resource := resourceOf(t, o)
		_, err := resource.Create(t.Context(), o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		t.Cleanup(func() {
			if err := resource.Delete(context.Background(), o.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
			}
		})
	}
}

// resourceOf is the client for objects of that kind, in the object's namespace.
func resourceOf(t *testing.T, o *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	kind := o.GroupVersionKind()
	mapping, err := restMapper().RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		t.Fatal(err)
	}
	if o.GetNamespace() == "" {
		return dynamicClient().Resource(mapping.Resource)
	}
	return dynamicClient().Resource(mapping.Resource).Namespace(o.GetNamespace())
}

// locksidecar runs the built binary.
func locksidecar(t *testing.T, stdin []byte, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.CommandContext(t.Context(), binary(), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// eventually asks until the answer is no error: the server hears of policies, webhooks
// and namespaces by watching them, as all its replicas do.
func eventually(t *testing.T, ask func() error) {
	t.Helper()
	const patience = 2 * time.Minute
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still after %s: %v", patience, err)
		}
		time.Sleep(20 * time.Millisecond) // between two questions
	}
}
