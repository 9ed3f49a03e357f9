package k8s

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// TestWhoIsInjected goes through labels and namespaces. Pods that would be injected are
// refused while nothing injects.
func TestWhoIsInjected(t *testing.T) {
	addServiceAccount(t, "kube-system")
	labelInjectorNamespace(t)
	plain, labelled, onNode := namespace(t, nil), namespace(t, optedIn), namespace(t, map[string]string{label: "node"})
	cases := []struct {
		name, namespace, label string
		optedIn                bool
	}{
		{"no label at all", plain, "", false},
		{"the pod's label", plain, "true", true},
		{"the pod's false", plain, "false", false},
		{"the namespace's label", labelled, "", true},
		{"the namespace's label, and the pod's", labelled, "true", true},
		{"the pod's false wins", labelled, "false", false},
		{"the pod's node", plain, "node", true},
		{"the pod's node, and the namespace's true", labelled, "node", true},
		{"the namespace's node", onNode, "", true},
		{"the namespace's node, and the pod's true", onNode, "true", true},
		{"the pod's false wins over node", onNode, "false", false},
		{"kube-system", "kube-system", "true", false},
		{"the injector's namespace", "locksidecar", "true", false},
		{"the injector's namespace, by its label", "locksidecar", "", false},
	}
	situations := map[string]struct {
		install func(t *testing.T)
		right   func(*unstructured.Unstructured, error) bool
	}{
		"policy":  {ways["policy"], isInjected},
		"webhook": {ways["webhook"], isInjected},
		"webhook down, and no validation": {func(t *testing.T) {
			configuration, stop := startWebhook(t)
			stop()
			probe := newProbe(t)
			t.Cleanup(func() { probe.until(t, "admitted", isAdmitted) })
			install(t, configuration)
			probe.until(t, "refused", isRefused("inject.locksidecar.dev"))
		}, isRefused("failed calling webhook")},
		"validation alone": {installValidation, isRefused(notInjected)},
	}
	for situation, s := range situations {
		t.Run(situation, func(t *testing.T) {
			s.install(t)
			for _, c := range cases {
				pod := podOf("app", map[string]string{label: c.label}, nil)
				if c.label == "" {
					pod.SetLabels(nil)
				}
				got, err := dryRun(t, c.namespace, pod)
				if c.optedIn && !s.right(got, err) {
					t.Errorf("%s: %v, %v", c.name, err, got)
				}
				node := c.label == "node" || c.label == "" && c.namespace == onNode
				if c.optedIn && err == nil {
					if text := string(asJSON(got)); strings.Contains(text, "csi.locksidecar.dev") != node || strings.Contains(text, "initContainers") == node {
						t.Errorf("%s: %s", c.name, text)
					}
				}
				if !c.optedIn && (err != nil || strings.Contains(string(asJSON(got)), "LOCKSIDECAR_")) {
					t.Errorf("%s: %v, %v", c.name, err, got)
				}
			}
		})
	}
}

// TestAnotherWordIsRefused has labels of somebody who means "true".
func TestAnotherWordIsRefused(t *testing.T) {
	namespaces := []string{namespace(t, nil), namespace(t, optedIn)}
	for situation, installIt := range map[string]func(t *testing.T){
		"policy": ways["policy"], "webhook": ways["webhook"], "validation alone": installValidation,
	} {
		t.Run(situation, func(t *testing.T) {
			installIt(t)
			for _, ns := range namespaces {
				for _, word := range []string{"yes", "True", ""} {
					pod := podOf("app", map[string]string{label: word}, nil)
					if _, err := dryRun(t, ns, pod); !isRefused(`it must be "true", "node" or "false"`)(nil, err) {
						t.Errorf("%q: %v", word, err)
					}
				}
			}
		})
	}
}

// TestMirrorPodsAreLeftAlone has the pod with which a kubelet shows a static pod.
func TestMirrorPodsAreLeftAlone(t *testing.T) {
	ns := namespace(t, optedIn)
	for way, installWay := range ways {
		t.Run(way, func(t *testing.T) {
			installWay(t)
			pod := podOf("static-node", nil, map[string]string{"kubernetes.io/config.mirror": "0"})
			at(pod.Object, "spec")["nodeName"] = "node"
			if got, err := dryRun(t, ns, pod); err != nil || strings.Contains(string(asJSON(got)), "LOCKSIDECAR_") {
				t.Errorf("%v, %v", err, got)
			}
		})
	}
}

// labelInjectorNamespace gives the injector's namespace the label, as somebody may who labels
// all. It makes the namespace, too, and leaves it: without controllers, a deleted namespace
// would never be gone.
func labelInjectorNamespace(t *testing.T) {
	t.Helper()
	namespaces := client().CoreV1().Namespaces()
	_, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "locksidecar"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	addServiceAccount(t, "locksidecar")
	set := func(value string) {
		patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, label, value)
		_, err := namespaces.Patch(context.Background(), "locksidecar", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	}
	set(`"true"`)
	t.Cleanup(func() { set("null") })
}
