package k8s

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/restmapper"
)

// notOfKubernetes are the files of deploy/ that are read by something else.
var notOfKubernetes = []string{
	"kustomization.yaml",
	"component/kustomization.yaml",
	"observability/alerts.yaml",
	"observability/alerts_test.yaml",
	"observability/otel-collector.yaml",
	"observability/prometheus.yaml",
	"injector/cert-manager.yaml", // cert-manager's kinds: chart_test.go
}

// manifests are the files of deploy/ with objects of Kubernetes.
func manifests(t *testing.T) (files []string) {
	t.Helper()
	var left []string
	folder := filepath.Join(root, "deploy")
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && slices.Contains([]string{"chart", "compose"}, entry.Name()) {
			return fs.SkipDir // the chart: chart_test.go
		}
		if ext := filepath.Ext(path); err != nil || ext != ".yaml" && ext != ".yml" {
			return err
		}
		file, err := filepath.Rel(folder, path)
		if slices.Contains(notOfKubernetes, file) {
			left = append(left, file)
		} else {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != len(notOfKubernetes) || len(files) == 0 {
		t.Fatalf("left out are %q, of %q", left, notOfKubernetes)
	}
	return files
}

// strictly decodes the objects of a file into their types: no field is unknown, none stands
// there twice.
func strictly(t *testing.T, file string) (objects []runtime.Object) {
	t.Helper()
	kinds := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(kinds), monitoringv1.AddToScheme(kinds)); err != nil {
		t.Fatal(err)
	}
	serializer := json.NewSerializerWithOptions(json.DefaultMetaFactory, kinds, kinds, json.SerializerOptions{Yaml: true, Strict: true})
	content, err := os.Open(filepath.Join(root, "deploy", file))
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	decoder := yaml.NewDocumentDecoder(content)
	document := make([]byte, 1<<20)
	for {
		n, err := decoder.Read(document)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if onlyComments(document[:n]) {
			continue
		}
		object, _, err := serializer.Decode(document[:n], nil, nil)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		objects = append(objects, object)
	}
}

func onlyComments(document []byte) bool {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

func TestManifestsAreStrict(t *testing.T) {
	for _, file := range manifests(t) {
		if len(strictly(t, file)) == 0 {
			t.Errorf("%s has no object", file)
		}
	}
}

// TestManifestsAreAdmitted: the server takes all of them, as `kubectl apply
// --server-side --dry-run=server` would, and knows all fields.
func TestManifestsAreAdmitted(t *testing.T) {
	installKinds(t)
	ns := namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	for _, file := range manifests(t) {
		for _, o := range deployed(t, file) {
			admitted(t, file, o, ns)
		}
	}
}

// installKinds makes the server know the kinds of the Prometheus Operator and of cert-manager.
func installKinds(t *testing.T) {
	t.Helper()
	for _, file := range []string{"podmonitor-crd.yaml", "prometheusrule-crd.yaml", "cert-manager-crds.yaml"} {
		definitions, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		install(t, decode(t, definitions)...)
	}
	for _, o := range slices.Concat(deployed(t, "podmonitor.yaml"), deployed(t, "injector/cert-manager.yaml"),
		decode(t, []byte("apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n"))) {
		eventually(t, func() error { // a definition is known a moment later
			_, err := mappingOf(t, o)
			return err
		})
	}
}

// admitted creates an object without keeping it, in its namespace or else in ns.
func admitted(t *testing.T, from string, o *unstructured.Unstructured, ns string) {
	t.Helper()
	mapping, err := mappingOf(t, o)
	if err != nil {
		t.Fatalf("%s: %v", from, err)
	}
	var resource dynamic.ResourceInterface = dynamicClient().Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		into := cmp.Or(o.GetNamespace(), ns)
		ensureNamespace(t, into)
		resource = dynamicClient().Resource(mapping.Resource).Namespace(into)
	}
	options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	eventually(t, func() error { // it may be known a moment before it is served
		_, err := resource.Create(t.Context(), o, options)
		if apierrors.IsNotFound(err) {
			return err
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Errorf("%s: %s %s: %v", from, o.GetKind(), o.GetName(), err)
		}
		return nil
	})
}

// mappingOf asks the server for the resource of an object's kind, each time anew.
func mappingOf(t *testing.T, o *unstructured.Unstructured) (*meta.RESTMapping, error) {
	t.Helper()
	groups, err := restmapper.GetAPIGroupResources(client().Discovery())
	if err != nil {
		t.Fatal(err)
	}
	kind := o.GroupVersionKind()
	return restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(kind.GroupKind(), kind.Version)
}

func ensureNamespace(t *testing.T, name string) {
	t.Helper()
	_, err := client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// template returns the pod of a workload, nil where the object has none.
func template(o runtime.Object) *corev1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *appsv1.ReplicaSet:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	case *batchv1.CronJob:
		return &o.Spec.JobTemplate.Spec.Template
	case *corev1.PodTemplate:
		return &o.Template
	case *corev1.Pod:
		return &corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
	}
	return nil
}

// injected runs `locksidecar inject` on a pod.
func injected(t *testing.T, pod *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	t.Helper()
	in := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: *pod.ObjectMeta.DeepCopy(), Spec: *pod.Spec.DeepCopy()}
	metav1.SetMetaDataLabel(&in.ObjectMeta, "locksidecar.dev/inject", "true")
	var encoded bytes.Buffer
	if err := json.NewSerializerWithOptions(json.DefaultMetaFactory, nil, nil, json.SerializerOptions{}).Encode(in, &encoded); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, exit := locksidecar(t, encoded.Bytes(), "inject", "-f", "-")
	if exit != 0 {
		t.Fatalf("inject: %d %s", exit, stderr)
	}
	var out corev1.Pod
	if err := yaml.Unmarshal([]byte(stdout), &out); err != nil {
		t.Fatal(err)
	}
	if _, own := pod.Annotations[containersAnnotation]; !own { // a note for later injections, which no manifest needs
		delete(out.Annotations, containersAnnotation)
	}
	delete(out.Annotations, versionAnnotation) // as above: the image's tag says the same
	if len(out.Annotations) == 0 {
		out.Annotations = nil
	}
	return &corev1.PodTemplateSpec{ObjectMeta: out.ObjectMeta, Spec: out.Spec}
}

// ofInject is what injection adds to a pod with one container.
func ofInject(t *testing.T) *corev1.PodTemplateSpec {
	return injected(t, &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app"}}}})
}

// without takes all that injection adds from a pod.
func without(pod *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	bare := pod.DeepCopy()
	spec := &bare.Spec
	spec.InitContainers = slices.DeleteFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == "locksidecar" })
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, "locksidecar-") })
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Env = slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "LOCKSIDECAR_SOCKET" })
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "locksidecar-socket" })
		}
	}
	return bare
}

// same compares pods as the API server sees them: nil and empty are the same there.
func same(t *testing.T, what string, got, want *corev1.PodTemplateSpec) {
	t.Helper()
	if diff := gocmp.Diff(normal(t, want), normal(t, got)); diff != "" {
		t.Errorf("%s is not what injection yields (-injected +here):\n%s", what, diff)
	}
}

func normal(t *testing.T, pod *corev1.PodTemplateSpec) map[string]any {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestSidecarIsWhatInjectionAdds: the manifest to copy from is what injection yields.
func TestSidecarIsWhatInjectionAdds(t *testing.T) {
	objects := strictly(t, "sidecar.yaml")
	if len(objects) != 2 {
		t.Fatalf("%d objects, want a Deployment and a Job", len(objects))
	}
	for _, o := range objects {
		pod := template(o)
		same(t, o.GetObjectKind().GroupVersionKind().Kind, pod, injected(t, without(pod)))
	}
}

// TestPlainSidecarIsTheSame: the ordinary container differs from the native one only where
// it must.
func TestPlainSidecarIsTheSame(t *testing.T) {
	pod := template(strictly(t, "plain-sidecar.yaml")[0]).DeepCopy()
	native := ofInject(t).Spec.InitContainers[0]
	plain := pod.Spec.Containers[0]
	if plain.Name != "locksidecar" {
		t.Fatalf("the first container is %q: apps would start before it", plain.Name)
	}
	if want := []string{"/locksidecar", "health", "--wait", "30s"}; plain.Lifecycle == nil || !slices.Equal(plain.Lifecycle.PostStart.Exec.Command, want) {
		t.Errorf("postStart does not wait for the socket")
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace == nil || *grace < 25+3 {
		t.Errorf("the grace period is %v, the drain timeout is 25 s, and 3 s are for traces", grace)
	}
	if pod.Labels["locksidecar.dev/inject"] != "false" {
		t.Error("injection is not refused: it would add a second sidecar")
	}
	plain.RestartPolicy, plain.StartupProbe, plain.Lifecycle = native.RestartPolicy, native.StartupProbe, nil
	pod.Spec.InitContainers, pod.Spec.Containers = []corev1.Container{plain}, pod.Spec.Containers[1:]
	pod.Labels["locksidecar.dev/inject"] = "true"
	same(t, "plain-sidecar.yaml", pod, injected(t, without(pod)))
}

// TestManifestsAgree: image, Secrets, ports and labels are the same in all files.
func TestManifestsAgree(t *testing.T) {
	want := ofInject(t)
	sidecar := want.Spec.InitContainers[0]
	port := sidecar.Ports[0]
	images := regexp.MustCompile(`[a-z.]+/locksidecar/locksidecar[:@][^\s"']*`)
	for _, file := range manifests(t) {
		content, err := os.ReadFile(filepath.Join(root, "deploy", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range images.FindAllString(string(content), -1) {
			if image != sidecar.Image {
				t.Errorf("%s: image %s, want %s", file, image, sidecar.Image)
			}
		}
		for _, o := range strictly(t, file) {
			if pod := template(o); pod != nil {
				agrees(t, file, pod, port)
			}
		}
	}
	policy := strictly(t, "networkpolicy.yaml")[0].(*networkingv1.NetworkPolicy)
	if got := policy.Spec.Ingress[0].Ports[0].Port.IntVal; got != port.ContainerPort {
		t.Errorf("networkpolicy.yaml lets in to port %d, want %d", got, port.ContainerPort)
	}
	for _, file := range []string{"sidecar.yaml", "migrate-job.yaml"} {
		for _, o := range strictly(t, file) {
			if !reaches(t, strictly(t, "networkpolicy.yaml"), template(o).Labels, 5432) {
				t.Errorf("networkpolicy.yaml does not let the pods of %s out to the database", file)
			}
		}
	}
	monitor := strictly(t, "podmonitor.yaml")[0].(*monitoringv1.PodMonitor)
	if got := monitor.Spec.PodMetricsEndpoints[0].Port; got == nil || *got != port.Name {
		t.Errorf("podmonitor.yaml scrapes port %v, want %s", got, port.Name)
	}
}

// TestOtherStores: the Secret of each store's file takes the place of the one that pods mount, its URL names files that are in it,
// and the policy lets pods out to the port of each server.
func TestOtherStores(t *testing.T) {
	for scheme, servers := range map[string]int{"etcds": 3, "mysql": 2} {
		t.Run(scheme, func(t *testing.T) { otherStore(t, scheme, servers) })
	}
}

func otherStore(t *testing.T, scheme string, servers int) {
	t.Helper()
	objects := strictly(t, strings.TrimSuffix(scheme, "s")+".yaml")
	secret := objects[0].(*corev1.Secret)
	spec := template(strictly(t, "sidecar.yaml")[0]).Spec
	volume := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil && v.Secret.SecretName == secret.Name })
	if volume < 0 {
		t.Fatalf("no pod of sidecar.yaml mounts the Secret %s", secret.Name)
	}
	mounts := spec.InitContainers[0].VolumeMounts
	mount := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == spec.Volumes[volume].Name })
	url := secret.StringData["store-url"]
	file := regexp.MustCompile(`^` + scheme + `://[^?]+\?cacert=([^&]+)$`).FindStringSubmatch(url)
	if file == nil || path.Dir(file[1]) != mounts[mount].MountPath || secret.StringData[path.Base(file[1])] == "" {
		t.Errorf("the URL %s names a file that is not in the Secret", url)
	}
	ports := regexp.MustCompile(`:(\d+)[,/]`).FindAllStringSubmatch(url, -1)
	if len(ports) != servers {
		t.Errorf("the URL %s names %d servers, want %d", url, len(ports), servers)
	}
	for _, found := range ports {
		port, err := strconv.ParseInt(found[1], 10, 32)
		if err != nil || !reaches(t, objects[1:], template(strictly(t, "sidecar.yaml")[0]).Labels, int32(port)) {
			t.Errorf("the policy does not let pods out to port %s: %v", found[1], err)
		}
	}
}

// reaches reports whether a policy lets pods with the labels connect to the port.
func reaches(t *testing.T, policies []runtime.Object, pod labels.Set, port int32) bool {
	t.Helper()
	return slices.ContainsFunc(policies, func(o runtime.Object) bool {
		policy := o.(*networkingv1.NetworkPolicy)
		selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
		if err != nil {
			t.Fatal(err)
		}
		return selector.Matches(pod) && slices.ContainsFunc(policy.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool {
			return slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port.IntVal == port })
		})
	})
}

// agrees holds a pod against the names that injection uses.
func agrees(t *testing.T, file string, pod *corev1.PodTemplateSpec, port corev1.ContainerPort) {
	t.Helper()
	secret := "locksidecar"
	switch file { // other roles'
	case "migrate-job.yaml":
		secret = "locksidecar-migrate"
	case "console.yaml":
		secret = "locksidecar-reader"
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == "locksidecar-store" && v.Secret.SecretName != secret {
			t.Errorf("%s: Secret %s, want %s", file, v.Secret.SecretName, secret)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if limit := c.Resources.Limits.Memory(); !limit.IsZero() && limit.Value() < 12<<20 {
			t.Errorf("%s: container %s may have %s: CRI-O refuses less than 12Mi", file, c.Name, limit)
		}
		for _, p := range c.Ports {
			if p.Name == port.Name && p != port {
				t.Errorf("%s: container %s has port %v, want %v", file, c.Name, p, port)
			}
		}
	}
}
