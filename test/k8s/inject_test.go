package k8s

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	label                = "locksidecar.dev/inject"
	containersAnnotation = "locksidecar.dev/containers"
	versionAnnotation    = "locksidecar.dev/injected-version"
)

var optedIn = map[string]string{label: "true"}

// TestAllWaysYieldTheSamePod: the policy and the webhook make the same pod as the command.
func TestAllWaysYieldTheSamePod(t *testing.T) {
	ns := namespace(t, nil)
	pods := append(readPods(t, "testdata/pods"), generated(300)...)
	// Nothing is installed yet, so the server only adds its defaults.
	type expected struct{ pod, injected *unstructured.Unstructured }
	var right []expected
	var wrong []*unstructured.Unstructured
	for _, pod := range pods {
		injected, refusal := injectOffline(t, pod)
		if injected == nil {
			if !strings.HasPrefix(pod.GetName(), "generated-") {
				t.Errorf("%s: %s", pod.GetName(), refusal)
			}
			wrong = append(wrong, pod)
			continue
		}
		admitted, err := dryRun(t, ns, injected)
		if err != nil {
			t.Fatalf("%v:\n%s", err, asJSON(injected))
		}
		right = append(right, expected{pod, admitted})
		if again, refusal := injectOffline(t, injected); again == nil || !cmp.Equal(again, injected) {
			t.Errorf("%s: injected twice is something else: %s", pod.GetName(), refusal)
		}
	}
	t.Logf("%d pods to inject, %d to refuse", len(right), len(wrong))
	if len(right) < 100 || len(wrong) < 50 {
		t.Fatal("the generator is one-sided")
	}
	for way, install := range ways {
		t.Run(way, func(t *testing.T) {
			install(t)
			for _, pod := range right {
				for _, asked := range []*unstructured.Unstructured{pod.pod, pod.injected} {
					got, err := dryRun(t, ns, asked)
					if err != nil {
						t.Fatalf("%v:\n%s", err, asJSON(asked))
					}
					if diff := cmp.Diff(pod.injected.Object, got.Object); diff != "" {
						t.Fatalf("differs from locksidecar inject (-):\n%s\n%s", diff, asJSON(asked))
					}
				}
			}
			for _, pod := range wrong {
				if _, err := dryRun(t, ns, pod); err == nil {
					t.Fatalf("admitted:\n%s", asJSON(pod))
				}
			}
		})
	}
}

// TestAllWaysRefuseTheSamePods also wants to be told why. Where a pod is also wrong for
// Kubernetes once the policy was at it, it is Kubernetes that says so.
func TestAllWaysRefuseTheSamePods(t *testing.T) {
	ns := namespace(t, nil)
	said := map[string]string{ // in the refusal of inject, of the webhook, and of validate.yaml
		"annotation-containers":                            "annotation locksidecar.dev/containers ",
		"annotation-cpu":                                   `annotation locksidecar.dev/cpu is "0.5": it must be millicores from 1m to 99999m, or cores from 1 to 99`,
		"annotation-cpu-limit":                             `annotation locksidecar.dev/cpu-limit is "0.5": it must be millicores from 1m to 99999m, or cores from 1 to 99`,
		"annotation-cpu-limit-below-request":               `annotation locksidecar.dev/cpu-limit is "900m": it must not be less than the request, 1 (the annotation locksidecar.dev/cpu changes it)`,
		"annotation-ephemeral-storage":                     `annotation locksidecar.dev/ephemeral-storage is "1Gi": it must be from 1Mi to 99999Mi, in Mi`,
		"annotation-ephemeral-storage-limit":               `annotation locksidecar.dev/ephemeral-storage-limit is "0Mi": it must be from 1Mi to 99999Mi, in Mi`,
		"annotation-ephemeral-storage-limit-below-request": `annotation locksidecar.dev/ephemeral-storage-limit is "99Mi": it must not be less than the request, 100Mi (the annotation locksidecar.dev/ephemeral-storage changes it)`,
		"annotation-image-pull-policy":                     `annotation locksidecar.dev/image-pull-policy is "always": it must be Always, IfNotPresent or Never`,
		"annotation-memory":                                `annotation locksidecar.dev/memory is "1Gi": it must be from 64Mi to 9999Mi, in Mi`,
		"annotation-log-level":                             `annotation locksidecar.dev/log-level is "trace": it must be debug, info, warn or error`,
		"annotation-env":                                   "must be lines of NAME=value, each name once",
		"annotation-image":                                 `annotation locksidecar.dev/image is "a b": it must be the name of an image`,
		"annotation-namespace":                             `annotation locksidecar.dev/namespace is "": it must be 1 to 255 letters`,
		"annotation-secret":                                `annotation locksidecar.dev/secret is "Locks": it must be the name of a Secret`,
		"annotation-socket":                                `annotation locksidecar.dev/socket is "run/l.sock": it must be an absolute path`,
		"annotation-socket-of-the-store":                   `with a folder other than /etc/locksidecar`,
		"annotation-unknown":                               "annotation locksidecar.dev/contaners is not known; known annotations: locksidecar.dev/image",
		"annotation-ttl":                                   `annotation locksidecar.dev/ttl is "15": it must be a duration from 500ms to 24h, such as 15s`,
		"annotation-ttl-too-long":                          `it must be a duration from 500ms to 24h`,
		"folder-taken":                                     "/run/locksidecar",
		"looks-elsewhere":                                  "LOCKSIDECAR_SOCKET to",
		"mounted-elsewhere":                                "locksidecar-socket",
		"name-taken":                                       "is no native sidecar: move it to initContainers with restartPolicy: Always, rename it, or remove the label",
		"node-annotation":                                  "annotation locksidecar.dev/secret is for a sidecar, and this pod has the lock server of its node",
		"node-sidecar":                                     "is a sidecar, and the pod asks for the lock server of its node",
		"node-socket":                                      `annotation locksidecar.dev/socket is "/locks/s.sock": the lock server of the node names the file locksidecar.sock`,
		"node-volume":                                      "csi: {driver: csi.locksidecar.dev, readOnly: true}",
		"not-native":                                       "is no native sidecar: it needs restartPolicy: Always",
		"own-sidecar-without-mount":                        "must mount ",
		"unknown-container":                                `"web", which the pod does not have; `,
		"volume-taken":                                     "must be an emptyDir: a socket is for one pod",
		"windows":                                          "spec.os.name is windows: ",
		"own-sidecar-with-read-only-mount":                 "must mount ",
		"writable-mount":                                   "readOnly: true",
		"mount-with-sub-path":                              "subPath",
	}
	byKubernetes := map[string]string{ // instead, in the refusal by policy.yaml and validate.yaml
		"annotation-cpu-limit-below-request":               "must be less than or equal to cpu limit of 900m",
		"annotation-ephemeral-storage-limit-below-request": "must be less than or equal to ephemeral-storage limit of 99Mi",
		"annotation-image-pull-policy":                     `imagePullPolicy: Unsupported value: "always"`,
		"annotation-socket-of-the-store":                   `mountPath: Invalid value: "/etc/locksidecar": must be unique`,
		"folder-taken":                                     "spec.containers[0].volumeMounts[1].mountPath: Invalid value",
		"name-taken":                                       `Duplicate value: "locksidecar"`,
		"windows":                                          "cannot be set for a windows pod",
	}
	pods := readPods(t, "testdata/refused")
	if len(pods) != len(said) {
		t.Errorf("%d pods, %d reasons", len(pods), len(said))
	}
	for _, pod := range pods {
		injected, refusal := injectOffline(t, pod)
		if injected != nil || !strings.Contains(refusal, said[pod.GetName()]) {
			t.Errorf("inject, %s: wanted %q, got %q", pod.GetName(), said[pod.GetName()], refusal)
		}
	}
	ways := map[string]func(t *testing.T){
		"policy": ways["policy"], "webhook": ways["webhook"],
		"none": installValidation,
	}
	for way, install := range ways {
		t.Run(way, func(t *testing.T) {
			install(t)
			for _, pod := range pods {
				want := said[pod.GetName()]
				if instead := byKubernetes[pod.GetName()]; way == "policy" && instead != "" {
					want = instead
				}
				if way == "none" && !strings.HasPrefix(pod.GetName(), "annotation-") {
					want = "" // much is missing; which of it is said first does not matter
				}
				if _, err := dryRun(t, ns, pod); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: wanted %q, got: %v", pod.GetName(), want, err)
				}
			}
		})
	}
}

// readPods reads a folder of pods, each of which has its file's name.
func readPods(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal("no pods in ", folder, err)
	}
	var pods []*unstructured.Unstructured
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pod := decode(t, content)[0]
		pod.SetName(strings.TrimSuffix(filepath.Base(file), ".yaml"))
		pods = append(pods, pod)
	}
	return pods
}

// injectOffline asks `locksidecar inject`. No pod: it refused, and said why.
func injectOffline(t *testing.T, pod *unstructured.Unstructured) (*unstructured.Unstructured, string) {
	t.Helper()
	stdout, stderr, exit := locksidecar(t, asJSON(pod), "inject", "-f", "-")
	if exit != 0 {
		if stdout != "" {
			t.Errorf("refused, and wrote to stdout: %s", stdout)
		}
		return nil, stderr
	}
	return decode(t, []byte(stdout))[0], ""
}

// dryRun creates the pod as a client would, and returns what would be stored, without what
// differs from one creation to the next. Cleanups ask, too, so it is not in the test's context.
func dryRun(t *testing.T, namespace string, pod *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	pod = pod.DeepCopy()
	pod.SetNamespace(namespace)
	stored, err := resourceOf(t, pod).Create(context.Background(), pod, metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
	})
	if err != nil {
		return nil, err
	}
	for _, field := range []string{"uid", "creationTimestamp", "managedFields", "resourceVersion", "namespace"} {
		unstructured.RemoveNestedField(stored.Object, "metadata", field)
	}
	delete(stored.Object, "status")
	return stored, nil
}

// podOf is a small pod.
func podOf(name string, labels, annotations map[string]string) *unstructured.Unstructured {
	pod := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"spec": map[string]any{"containers": []any{map[string]any{"name": "app", "image": "app"}}},
	}}
	pod.SetName(name)
	pod.SetLabels(labels)
	pod.SetAnnotations(annotations)
	return pod
}

// hasSocket says whether the container has all that an app needs.
func hasSocket(pod *unstructured.Unstructured, container string) bool {
	containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
	for _, c := range containers {
		if c, _ := c.(map[string]any); c["name"] == container {
			said := fmt.Sprint(c)
			return strings.Contains(said, "LOCKSIDECAR_SOCKET") && strings.Contains(said, "name:locksidecar-socket readOnly:true")
		}
	}
	return false
}

func asJSON(o *unstructured.Unstructured) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(o.Object); err != nil {
		panic(err)
	}
	return out.Bytes()
}
