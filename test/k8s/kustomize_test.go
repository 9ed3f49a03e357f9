package k8s

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// build is `kustomize build`.
func build(t *testing.T, files filesys.FileSystem, folder string) []*unstructured.Unstructured {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, folder)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, stream)
}

func TestKustomizationBuilds(t *testing.T) {
	built := build(t, filesys.MakeFsOnDisk(), filepath.Join(root, "deploy"))
	if diff := gocmp.Diff(byKind(deployed(t, "sidecar.yaml")), byKind(built)); diff != "" {
		t.Errorf("it is not sidecar.yaml:\n%s", diff)
	}
}

func byKind(objects []*unstructured.Unstructured) map[string]any {
	all := map[string]any{}
	for _, o := range objects {
		all[o.GetKind()+" "+o.GetName()] = o.Object
	}
	return all
}

// pods are what a workload may have: any number of containers, with and without what the
// component adds to.
var pods = map[string]string{
	"bare": `
containers: [{ name: one, image: app }]`,
	"several": `
initContainers: [{ name: prepare, image: app }, { name: proxy, image: app, env: [{ name: A, value: "1" }] }]
containers:
  - { name: one, image: app, env: [{ name: A, value: "1" }, { name: B, valueFrom: { fieldRef: { fieldPath: metadata.name } } }] }
  - { name: two, image: app, volumeMounts: [{ name: data, mountPath: /data }] }
  - { name: three, image: app, ports: [{ containerPort: 80 }] }
volumes: [{ name: data, emptyDir: {} }]`,
	"its own security": `
securityContext: { fsGroup: 1000, runAsUser: 1000 }
containers: [{ name: one, image: app, securityContext: { privileged: true } }]`,
}

// workload is a template of manifests, in which NAME and SPEC are replaced, and the path to
// its pod.
type workload struct {
	kind, manifest string
	pod            []string
}

var workloads = []workload{
	{"Deployment", "apiVersion: apps/v1\nkind: Deployment\nmetadata: { name: NAME }\nspec:\n  template:\n    spec:SPEC\n", []string{"spec", "template"}},
	{"StatefulSet", "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: { name: NAME }\nspec:\n  template:\n    metadata: { labels: { app: x } }\n    spec:SPEC\n", []string{"spec", "template"}},
	{"DaemonSet", "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: { name: NAME }\nspec:\n  template:\n    spec:SPEC\n", []string{"spec", "template"}},
	{"ReplicaSet", "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: { name: NAME }\nspec:\n  template:\n    spec:SPEC\n", []string{"spec", "template"}},
	{"Job", "apiVersion: batch/v1\nkind: Job\nmetadata: { name: NAME }\nspec:\n  template:\n    spec:SPEC\n", []string{"spec", "template"}},
	{"CronJob", "apiVersion: batch/v1\nkind: CronJob\nmetadata: { name: NAME }\nspec:\n  jobTemplate:\n    spec:\n      template:\n        spec:SPEC\n", []string{"spec", "jobTemplate", "spec", "template"}},
	{"Pod", "apiVersion: v1\nkind: Pod\nmetadata: { name: NAME }\nspec:SPEC\n", nil},
}

// others are in the same kustomization, and stay as they are.
const others = `
apiVersion: v1
kind: Service
metadata: { name: web }
spec: { ports: [{ port: 80 }] }
---
apiVersion: batch/v1
kind: Job
metadata: { name: without, labels: { locksidecar.dev/inject: "false" } }
spec: { template: { spec: { containers: [{ name: one, image: app }] } } }
`

// TestComponent: what the component makes of any workload is what injection does.
func TestComponent(t *testing.T) {
	var resources strings.Builder
	resources.WriteString(others)
	for _, w := range workloads {
		for name, spec := range pods {
			spec = strings.ReplaceAll(spec, "\n", "\n            ")
			name = strings.ReplaceAll(name, " ", "-")
			resources.WriteString("---\n" + strings.NewReplacer("NAME", name, "SPEC", spec).Replace(w.manifest))
		}
	}
	before := byKind(decode(t, []byte(resources.String())))
	after := byKind(build(t, withComponent(t, resources.String()), "app"))
	if len(after) != len(before) {
		t.Errorf("%d objects became %d", len(before), len(after))
	}
	for _, name := range []string{"Service web", "Job without"} {
		if diff := gocmp.Diff(before[name], after[name]); diff != "" {
			t.Errorf("%s is changed:\n%s", name, diff)
		}
		delete(before, name)
	}
	for name := range before {
		kind, _, _ := strings.Cut(name, " ")
		got, want := podIn(t, kind, after[name]), injected(t, podIn(t, kind, before[name]))
		for _, pod := range []*corev1.PodTemplateSpec{got, want} { // their order means nothing
			slices.SortFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return cmp.Compare(a.Name, b.Name) })
		}
		same(t, name, got, want)
	}
}

// TestComponentOnItself: applied to what has the sidecar it changes nothing.
func TestComponentOnItself(t *testing.T) {
	content, err := os.ReadFile(filepath.Join(root, "deploy", "sidecar.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	built := build(t, withComponent(t, string(content)), "app")
	if diff := gocmp.Diff(byKind(deployed(t, "sidecar.yaml")), byKind(built)); diff != "" {
		t.Errorf("it changes sidecar.yaml:\n%s", diff)
	}
}

// TestComponentLeavesOptedOut: what says "false" in deploy/ stays as it is.
func TestComponentLeavesOptedOut(t *testing.T) {
	for _, file := range []string{"plain-sidecar.yaml", "migrate-job.yaml"} {
		content, err := os.ReadFile(filepath.Join(root, "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		built := build(t, withComponent(t, string(content)), "app")
		if diff := gocmp.Diff(byKind(deployed(t, file)), byKind(built)); diff != "" {
			t.Errorf("it changes %s:\n%s", file, diff)
		}
	}
}

// withComponent is a file system with a kustomization that uses the component.
func withComponent(t *testing.T, resources string) filesys.FileSystem {
	t.Helper()
	files := filesys.MakeFsInMemory()
	write := func(name string, content []byte) {
		if err := files.WriteFile(name, content); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kustomization.yaml", "pod.yaml"} {
		content, err := os.ReadFile(filepath.Join(root, "deploy", "component", name))
		if err != nil {
			t.Fatal(err)
		}
		write("component/"+name, content)
	}
	write("app/kustomization.yaml", []byte("resources: [app.yaml]\ncomponents: [../component]\n"))
	write("app/app.yaml", []byte(resources))
	return files
}

// podIn returns the pod of a workload, by the path to it.
func podIn(t *testing.T, kind string, object any) *corev1.PodTemplateSpec {
	t.Helper()
	i := slices.IndexFunc(workloads, func(w workload) bool { return w.kind == kind })
	content, _, err := unstructured.NestedMap(map[string]any{"object": object}, append([]string{"object"}, workloads[i].pod...)...)
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.PodTemplateSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &pod); err != nil {
		t.Fatal(err)
	}
	return &pod
}
