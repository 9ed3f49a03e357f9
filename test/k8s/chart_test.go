package k8s

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var chart = filepath.Join(root, "deploy", "chart")

// helm runs the pinned Helm, which make names.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	program := os.Getenv("HELM")
	if program == "" {
		t.Fatal("HELM is not set: run make test-k8s")
	}
	var out, errs strings.Builder
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stdout, command.Stderr = &out, &errs
	// Nothing of the user's, and no cluster.
	home := t.TempDir()
	command.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "KUBECONFIG=" + filepath.Join(home, "none")}
	err = command.Run()
	return out.String(), errs.String(), err
}

// rendered returns the chart's objects, as they are installed in the namespace.
func rendered(t *testing.T, namespace string, flags ...string) []*unstructured.Unstructured {
	t.Helper()
	out, errs, err := helm(t, append([]string{"template", "locksidecar", chart, "--namespace", namespace, "--kube-version", "1.36.0"}, flags...)...)
	if err != nil {
		t.Fatalf("helm template %s: %v\n%s", flags, err, errs)
	}
	return decode(t, []byte(out))
}

// ownValues are the value files of the chart.
func ownValues(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chart, "ci", "*.yaml"))
	if err != nil || len(files) != 8 {
		t.Fatalf("%d value files: %v", len(files), err)
	}
	return files
}

// TestChartIsAdmitted lints the chart with each of its value files, and the server takes all objects.
func TestChartIsAdmitted(t *testing.T) {
	installKinds(t)
	ns := namespace(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	kinds := map[string]bool{}
	for _, file := range ownValues(t) {
		if out, errs, err := helm(t, "lint", "--strict", chart, "--values", file); err != nil {
			t.Errorf("helm lint %s: %v\n%s%s", file, err, out, errs)
		}
		for _, o := range rendered(t, ns, "--values", file) {
			admitted(t, filepath.Base(file), o, ns)
			kinds[o.GetKind()] = true
		}
	}
	for _, kind := range []string{"CSIDriver", "Certificate", "ConfigMap", "CronJob", "DaemonSet", "Job", "MutatingAdmissionPolicy", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "Secret", "ServiceAccount"} {
		if !kinds[kind] {
			t.Errorf("no value file yields a %s", kind)
		}
	}
}

// TestChartIsTheManifests: in the namespace of the manifests, the chart makes the same objects.
func TestChartIsTheManifests(t *testing.T) {
	for _, c := range []struct {
		flags string
		files []string
	}{
		{"injector.podDisruptionBudget=true", []string{"injector/webhook.yaml", "injector/certificate-job.yaml", "injector/validate.yaml"}},
		{"injector.certificate.by=cert-manager", []string{"injector/webhook.yaml", "injector/cert-manager.yaml", "injector/validate.yaml"}},
		{"podMonitor.enabled=true", []string{
			"injector/webhook.yaml", "injector/certificate-job.yaml", "injector/validate.yaml", "podmonitor.yaml", "injector/podmonitor.yaml",
		}},
		{"injector.mode=policy,injector.validation=false", []string{"injector/policy.yaml"}},
		{"mode=node,injector.mode=none,injector.validation=false", []string{"node.yaml"}},
		{
			"injector.mode=none,injector.validation=false,migration.enabled=true,networkPolicy.enabled=true,podMonitor.enabled=true,namespaces={locksidecar}",
			[]string{"migrate-job.yaml", "networkpolicy.yaml", "podmonitor.yaml"},
		},
	} {
		var want []*unstructured.Unstructured
		for _, file := range c.files {
			want = append(want, deployed(t, file)...)
		}
		got := rendered(t, "locksidecar", "--set", c.flags)
		if diff := gocmp.Diff(comparable(want), comparable(got)); diff != "" {
			t.Errorf("%s: the chart is not %s (-manifests +chart):\n%s", c.flags, c.files, diff)
		}
	}
}

// comparable takes away what must differ between the manifests and the chart.
func comparable(objects []*unstructured.Unstructured) map[string]any {
	hash := regexp.MustCompile(`-[0-9a-f]{8}$`)
	all := map[string]any{}
	for _, o := range objects {
		o = o.DeepCopy()
		o.SetNamespace("") // a namespaced manifest may leave it to kubectl
		labels, annotations := o.GetLabels(), o.GetAnnotations()
		for _, name := range []string{"app.kubernetes.io/managed-by", "app.kubernetes.io/instance", "helm.sh/chart"} {
			delete(labels, name)
		}
		for name := range annotations {
			if strings.HasPrefix(name, "helm.sh/hook") || name == "cert-manager.io/inject-ca-from" {
				delete(annotations, name)
			}
		}
		o.SetLabels(labels)
		o.SetAnnotations(annotations)
		for _, field := range []string{"labels", "annotations"} {
			if at(o.Object, "metadata")[field] == nil || len(at(o.Object, "metadata", field)) == 0 {
				unstructured.RemoveNestedField(o.Object, "metadata", field)
			}
		}
		switch o.GetKind() {
		case "Namespace": // Helm's --create-namespace
			continue
		case "Job":
			o.SetName(hash.ReplaceAllString(o.GetName(), ""))
			unstructured.RemoveNestedField(o.Object, "spec", "ttlSecondsAfterFinished") // a hook is deleted
		}
		text, _ := json.Marshal(o.Object)
		var plain any
		_ = json.Unmarshal(text, &plain)
		all[o.GetKind()+" "+o.GetName()] = plain
	}
	return all
}

// TestChartFollowsItsValues: nothing stays of the manifests' namespace, image and Secret.
func TestChartFollowsItsValues(t *testing.T) {
	left := regexp.MustCompile(`ghcr\.io|namespace: locksidecar$|- locksidecar$|locksidecar\.svc|locksidecar/locksidecar-|secret=locksidecar$|'"locksidecar"'`)
	for _, mode := range []string{"injector.certificate.by=job", "injector.certificate.by=cert-manager", "injector.mode=policy"} {
		out, errs, err := helm(t, "template", "other", chart, "--namespace", "elsewhere", "--set", mode,
			"--set", "mode=both,image.repository=registry.example.com/locks,image.tag=x,database.secret=store,migration.enabled=true,networkPolicy.enabled=true,namespaces={shop},podMonitor.enabled=true")
		if err != nil {
			t.Fatalf("%s: %v\n%s", mode, err, errs)
		}
		for line := range strings.Lines(out) {
			if left.MatchString(strings.TrimRight(line, "\n")) {
				t.Errorf("%s: %s", mode, line)
			}
		}
	}
}

// TestChartValuesAreChecked: the schema has every value, and refuses others. Values that would have no effect are refused, too.
func TestChartValuesAreChecked(t *testing.T) {
	for _, c := range []struct{ value, want string }{
		{"replicas=3", "additional properties 'replicas' not allowed"},
		{"injector.replica=3", "additional properties 'replica' not allowed"},
		{"injector.mode=both", "/injector/mode"},
		{"mode=nodes", "/mode"},
		{"mode=node,uid=0", "uid must not be 0"},
		{"node.kubelet=kubelet", "/node/kubelet"},
		{"node.policy.namespace.a=b", "additional properties 'namespace' not allowed"},
		{"node.policy.serviceAccounts[0].namespace=a,node.policy.serviceAccounts[0].name=b", "/node/policy/serviceAccounts/0"},
		{"mode=node,node.env.LOCKSIDECAR_DRAIN_TIMEOUT=1h30m", "write it in one unit"},
		{"mode=both,database.storeURL=postgres://db/app", "in each of `namespaces`, and this list is empty"},
		{"injector.replicas=0", "/injector/replicas"},
		{"injector.certificate.by=existing", "/injector/certificate/caBundle"},
		{"injector.certificate.caBundle=x", "/injector/certificate/caBundle"},
		{"injector.env.path=x", "invalid propertyName 'path'"},
		{"database.storeURL=oracle://db", "/database/storeURL"},
		{"database.storeURL=postgres://db/app", "in each of `namespaces`, and this list is empty"},
		{"networkPolicy.enabled=true", "in each of `namespaces`, and this list is empty"},
		{"migration.storeURL=postgres://db/app", "set migration.enabled=true, too"},
		{"migration.storeURL=etcd://db", "/migration/storeURL"},
		{"database.port=0", "/database/port"},
		{"image.digest=sha256:1", "/image/digest"},
		{"image.pullPolicy=always", "/image/pullPolicy"},
		{"uid=-1", "/uid"},
		{"uid=root", "/uid"},
		{"labels.team=1", "/labels/team"},
		{"pods.affinity.near=1", "additional properties 'near' not allowed"},
		{"pods.tolerations={a}", "/pods/tolerations/0"},
		{"serviceAccounts.injector=A", "/serviceAccounts/injector"},
		{"injector.topologySpreadConstraints[0].maxSkew=1", "/injector/topologySpreadConstraints/0"},
		{"prometheusRule.enabled=1", "/prometheusRule/enabled"},
		{"namespaces={A}", "/namespaces/0"},
	} {
		if _, errs, err := helm(t, "template", chart, "--set", c.value); err == nil || !strings.Contains(errs, c.want) {
			t.Errorf("%s: wanted %q, got: %v\n%s", c.value, c.want, err, errs)
		}
	}
}

// TestChartOfTheNode: another policy is another ConfigMap, so nothing changes under the lock servers that run. Their grace period is longer than the drain timeout.
func TestChartOfTheNode(t *testing.T) {
	names := map[string]bool{}
	for _, namespace := range []string{"shop", "pay"} {
		graceful := false
		for _, o := range rendered(t, "locksidecar", "--set", "mode=node,node.policy.namespaces.a="+namespace+",node.env.LOCKSIDECAR_DRAIN_TIMEOUT=2h") {
			switch {
			case strings.HasPrefix(o.GetName(), "locksidecar-node-policy-"):
				names[o.GetName()] = true
				if o.Object["immutable"] != true || o.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
					t.Errorf("%s may be changed or removed", o.GetName())
				}
			case o.GetKind() == "DaemonSet" && o.GetName() == "locksidecar-node":
				text, _ := json.Marshal(o.Object["spec"])
				graceful = strings.Contains(string(text), `"terminationGracePeriodSeconds":7260`)
			}
		}
		if !graceful {
			t.Error("the grace period does not follow the drain timeout")
		}
	}
	if len(names) != 2 {
		t.Errorf("ConfigMaps: %v", names)
	}
}

// TestChartReachesItsStore: the policies of the apps' namespaces let sidecars out to the store's port, also to that of etcd and of MySQL.
func TestChartReachesItsStore(t *testing.T) {
	for store, port := range map[string]string{"etcd": "2379", "mysql": "3306"} {
		found := false
		for _, o := range rendered(t, "locksidecar", "--values", filepath.Join(chart, "ci", store+".yaml")) {
			if o.GetKind() == "NetworkPolicy" && o.GetNamespace() == "shop" {
				text, _ := json.Marshal(o.Object["spec"])
				found = strings.Contains(string(text), `"port":`+port) && !strings.Contains(string(text), `"port":5432`)
			}
		}
		if !found {
			t.Errorf("no policy with the port of %s alone", store)
		}
	}
}

// TestChartSaysWhatAClusterLacks: an old cluster gets a reason, and what it can do.
func TestChartSaysWhatAClusterLacks(t *testing.T) {
	for _, c := range []struct{ version, values, want string }{
		{"1.28.9", "injector.mode=none", "requires kubeVersion"},
		{"1.29.0", "injector.mode=webhook", "set injector.validation=false"},
		{"1.29.0", "injector.validation=false", ""},
		{"1.30.1-gke.1", "injector.mode=webhook", ""},
		{"1.35.9", "injector.mode=policy", "set injector.mode=webhook"},
		{"1.36.0", "injector.mode=policy", ""},
	} {
		_, errs, err := helm(t, "template", chart, "--kube-version", c.version, "--set", c.values)
		if (err != nil) != (c.want != "") || !strings.Contains(errs, c.want) {
			t.Errorf("%s with %s: wanted %q, got: %v\n%s", c.version, c.values, c.want, err, errs)
		}
	}
}

// TestChartFitsItsSecrets: the Secrets are where the pods look for them.
func TestChartFitsItsSecrets(t *testing.T) {
	const url = "postgres://locksidecar:secret@db/app"
	objects := rendered(t, "locksidecar", "--set", "namespaces={shop,orders},database.secret=store,database.storeURL="+url+
		",migration.enabled=true,migration.secret=migrator,migration.storeURL="+url)
	var got []string
	for _, o := range objects {
		if o.GetKind() == "Secret" {
			data, _, err := unstructured.NestedString(o.Object, "data", "store-url")
			if err != nil || data != encoded([]byte(url)) {
				t.Errorf("the Secret %s has %q: %v", o.GetName(), data, err)
			}
			got = append(got, o.GetNamespace()+"/"+o.GetName())
		}
		if o.GetKind() == "Job" && o.GetName() == "locksidecar-migrate" {
			if name := at(o.Object, "spec", "template", "spec", "volumes", 0, "secret")["secretName"]; name != "migrator" {
				t.Errorf("the migration mounts the Secret %v", name)
			}
		}
	}
	slices.SortFunc(got, cmp.Compare)
	if want := []string{"locksidecar/migrator", "orders/store", "shop/store"}; !slices.Equal(got, want) {
		t.Errorf("Secrets %q, want %q", got, want)
	}
}

// TestChartAlertsAreTheFile: the PrometheusRule has the groups of alerts.yaml, with the links to the runbook.
func TestChartAlertsAreTheFile(t *testing.T) {
	want := deployed(t, "observability/alerts.yaml")[0].Object["groups"]
	for _, o := range rendered(t, "locksidecar", "--set", "injector.mode=none,prometheusRule.enabled=true,prometheusRule.labels.release=x,labels.team=y") {
		if o.GetKind() != "PrometheusRule" {
			continue
		}
		if diff := gocmp.Diff(want, at(o.Object, "spec")["groups"]); diff != "" {
			t.Errorf("the PrometheusRule is not alerts.yaml (-):\n%s", diff)
		}
		if labels := o.GetLabels(); labels["release"] != "x" || labels["team"] != "y" {
			t.Errorf("labels %v", labels)
		}
		return
	}
	t.Error("there is no PrometheusRule")
}

// TestChartPodsFollowItsValues: each pod of the chart has what `pods` says, and the user; no pod has a user if the cluster assigns one.
func TestChartPodsFollowItsValues(t *testing.T) {
	const values = "migration.enabled=true,image.pullPolicy=Always,pods.labels.a=b,pods.annotations.c=d,pods.nodeSelector.e=f,pods.priorityClassName=high," +
		"pods.tolerations[0].operator=Exists,pods.affinity.podAffinity.x=y,serviceAccounts.injector=mine,serviceAccounts.annotations.g=h,labels.i=j"
	for uid, want := range map[string]string{"1000": "1000", "0": "<nil>", "null": "<nil>"} {
		pods, accounts := 0, 0
		for _, o := range rendered(t, "locksidecar", "--set", values+",uid="+uid) {
			if o.GetLabels()["i"] != "j" {
				t.Errorf("%s %s has the labels %v", o.GetKind(), o.GetName(), o.GetLabels())
			}
			var pod object
			switch o.GetKind() {
			case "CronJob":
				pod = at(o.Object, "spec", "jobTemplate", "spec", "template")
			case "Deployment", "Job":
				pod = at(o.Object, "spec", "template")
			case "ServiceAccount":
				accounts++
				if o.GetName() == "locksidecar-injector" || o.GetAnnotations()["g"] != "h" {
					t.Errorf("ServiceAccount %s with %v", o.GetName(), o.GetAnnotations())
				}
				continue
			default:
				continue
			}
			pods++
			spec, container := at(pod, "spec"), at(pod, "spec", "containers", 0)
			if at(pod, "metadata", "labels")["a"] != "b" || at(pod, "metadata", "annotations")["c"] != "d" || at(spec, "nodeSelector")["e"] != "f" ||
				spec["priorityClassName"] != "high" || at(spec, "tolerations", 0)["operator"] != "Exists" || at(spec, "affinity", "podAffinity")["x"] != "y" ||
				container["imagePullPolicy"] != "Always" {
				t.Errorf("%s %s:\n%v", o.GetKind(), o.GetName(), pod)
			}
			if o.GetKind() == "Deployment" && spec["serviceAccountName"] != "mine" {
				t.Errorf("the injector's account is %v", spec["serviceAccountName"])
			}
			user := at(container, "securityContext")["runAsUser"]
			if o.GetKind() == "Deployment" {
				user = at(spec, "securityContext")["runAsUser"]
			}
			if fmt.Sprint(user) != want {
				t.Errorf("%s %s runs as %v, want %v", o.GetKind(), o.GetName(), user, want)
			}
		}
		if pods != 4 || accounts != 1 {
			t.Errorf("%d pods, %d accounts", pods, accounts)
		}
	}
}

// TestChartInjectsAsItsValuesSay: its policy and its webhook make the pod that the command makes with the same options.
func TestChartInjectsAsItsValuesSay(t *testing.T) {
	ns := namespace(t, nil)
	const values = "uid=0,image.pullPolicy=Always,image.repository=registry.example.com/locks,image.tag=x,database.secret=store,injector.env.OTEL_SERVICE_NAME=shop"
	pod := podOf("app", optedIn, nil)
	stdout, stderr, exit := locksidecar(t, asJSON(pod), "inject", "-f", "-", "--uid=0", "--image-pull-policy=Always",
		"--image=registry.example.com/locks:x", "--secret=store", "--env=OTEL_SERVICE_NAME=shop")
	if exit != 0 {
		t.Fatal(stderr)
	}
	want, err := dryRun(t, ns, decode(t, []byte(stdout))[0])
	if err != nil {
		t.Fatal(err)
	}
	sidecar := at(want.Object, "spec", "initContainers", 0)
	if _, set := at(sidecar, "securityContext")["runAsUser"]; set || sidecar["imagePullPolicy"] != "Always" {
		t.Fatalf("%v", sidecar)
	}
	for _, o := range rendered(t, "locksidecar", "--set", values) {
		if o.GetKind() == "Deployment" {
			args := at(o.Object, "spec", "template", "spec", "containers", 0)["args"]
			if got, want := args, []any{"inject", "--webhook", "--image=registry.example.com/locks:x", "--secret=store", "--image-pull-policy=Always", "--uid=0", "--env=OTEL_SERVICE_NAME=shop"}; !gocmp.Equal(got, want) {
				t.Errorf("the webhook's flags are %v", got)
			}
		}
	}
	installInjector(t, rendered(t, "locksidecar", "--set", values+",injector.mode=policy,injector.validation=false")...)
	got, err := dryRun(t, ns, pod)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want.Object, got.Object); diff != "" {
		t.Errorf("differs from locksidecar inject (-):\n%s", diff)
	}
}
