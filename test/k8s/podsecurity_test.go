package k8s

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

// violations are what Pod Security, in its latest version, has against a pod.
func violations(t *testing.T, level api.Level, pod *corev1.PodTemplateSpec) string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	version := api.LevelVersion{Level: level, Version: api.LatestVersion()}
	result := policy.AggregateCheckResults(evaluator.EvaluatePod(version, &pod.ObjectMeta, &pod.Spec))
	if result.Allowed {
		return ""
	}
	return result.ForbiddenReason() + ": " + result.ForbiddenDetail()
}

// TestPodsAreRestricted: no manifest but that of node mode needs a namespace that allows more than "restricted". There the volume plugin is privileged, because it mounts, and the lock
// server has one folder of the node, and is restricted otherwise. The app in the component's pod.yaml is the app's matter.
// Proves: threat inside the sidecar
func TestPodsAreRestricted(t *testing.T) {
	pods := 0
	for _, file := range manifests(t) {
		for _, o := range strictly(t, file) {
			pod := template(o)
			if pod == nil {
				continue
			}
			pods++
			switch {
			case file == "component/pod.yaml":
				pod.Spec.Containers = nil
			case file == "node.yaml" && pod.Labels["app"] == "locksidecar-csi":
				continue
			case file == "node.yaml":
				with := len(pod.Spec.Volumes)
				pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil })
				if with-len(pod.Spec.Volumes) != 1 {
					t.Errorf("%s: the lock server has not one folder of the node", file)
				}
			}
			if why := violations(t, api.LevelRestricted, pod); why != "" {
				t.Errorf("%s: %s", file, why)
			}
		}
	}
	if pods < 5 {
		t.Errorf("only %d pods were found", pods)
	}
}

const restrictedPod = `
spec:
  securityContext: { runAsNonRoot: true, seccompProfile: { type: RuntimeDefault } }
  initContainers:
    - name: prepare
      image: app
      securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
  containers:
    - name: app
      image: app
      securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: [ALL] } }
`

const baselinePod = `
spec:
  containers:
    - { name: app, image: app }
`

// TestInjectionKeepsTheLevel: a pod that was good enough for its namespace still is.
func TestInjectionKeepsTheLevel(t *testing.T) {
	for level, manifest := range map[api.Level]string{api.LevelRestricted: restrictedPod, api.LevelBaseline: baselinePod} {
		var pod corev1.PodTemplateSpec
		if err := yaml.UnmarshalStrict([]byte(manifest), &pod); err != nil {
			t.Fatal(err)
		}
		if why := violations(t, level, &pod); why != "" {
			t.Fatalf("the pod itself is not %s: %s", level, why)
		}
		if why := violations(t, level, injected(t, &pod)); why != "" {
			t.Errorf("%s: %s", level, why)
		}
	}
}
