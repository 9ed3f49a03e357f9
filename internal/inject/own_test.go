package inject

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func socketsOf(pod object) string {
	var names []string
	for _, a := range apps(objectIn(pod, "spec")) {
		if named(listIn(a.object, "volumeMounts"), SocketVolume) != nil && named(listIn(a.object, "env"), socketVariable) != nil {
			names = append(names, a.name())
		}
	}
	return strings.Join(names, ",")
}

func noted(pod object) string {
	return textIn(objectIn(objectIn(pod, "metadata"), "annotations"), ContainersAnnotation)
}

// Sidecars of others get no socket, whether they are there already or come later.
// Proves: threat other container
func TestOwnContainersGetTheSocket(t *testing.T) {
	pod, err := Pod(parse(t, `
metadata: {annotations: {other: x}}
spec:
  initContainers: [{name: istio-init}, {name: migrate}, {name: proxy, restartPolicy: Always}, {name: istio-proxy, restartPolicy: Always}]
  containers: [{name: app}, {name: worker, restartPolicy: Always}, {name: linkerd-proxy}, {name: vault-agent}, {name: daprd}, {name: istio-proxy-tests}]`), defaults)
	if err != nil {
		t.Fatal(err)
	}
	const own = "migrate,app,worker,istio-proxy-tests"
	if socketsOf(pod) != own || noted(pod) != own {
		t.Errorf("sockets of %s, noted %s", socketsOf(pod), noted(pod))
	}
	spec := objectIn(pod, "spec")
	spec["containers"] = append(listIn(spec, "containers"), object{"name": "late"})
	again, err := Pod(pod, defaults)
	if err != nil || socketsOf(again) != own || noted(again) != own {
		t.Errorf("asked again: %v, sockets of %s, noted %s", err, socketsOf(again), noted(again))
	}
}

// The annotation wins over what the names say.
func TestChosenContainersGetTheSocket(t *testing.T) {
	pod, err := Pod(parse(t, `
metadata: {annotations: {locksidecar.dev/containers: "istio-proxy,shipper"}}
spec:
  initContainers: [{name: shipper, restartPolicy: Always}]
  containers: [{name: app}, {name: istio-proxy}]`), defaults)
	if err != nil || socketsOf(pod) != "shipper,istio-proxy" {
		t.Errorf("%v: sockets of %s", err, socketsOf(pod))
	}
}

func TestPodsOfSidecarsAloneAreRefused(t *testing.T) {
	for text, says := range map[string]string{
		"spec: {containers: [{name: istio-proxy}]}":   "the pod has no container but sidecars: name those that get the socket with the annotation locksidecar.dev/containers",
		"spec: {containers: [{name: a}, {image: b}]}": "spec.containers[] has no proper name",
		`spec: {containers: [{name: "a,b"}]}`:         "spec.containers[a,b] has no proper name",
	} {
		if _, err := Pod(parse(t, text), defaults); err == nil || err.Error() != says {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Proves: threat pod author
func TestSidecarIsAsThePodWants(t *testing.T) {
	const text = `
metadata: {annotations: {
  locksidecar.dev/cpu: 250m, locksidecar.dev/memory: 512Mi, locksidecar.dev/log-level: debug,
  locksidecar.dev/env: "OTEL_SERVICE_NAME=web=1\nLOCKSIDECAR_CACHE_TTL=1s\n"}}
spec: {containers: [{name: app}]}`
	for _, test := range []struct {
		env  []Variable
		want string
	}{
		{nil, `{"name":"LOCKSIDECAR_LOG_LEVEL","value":"debug"},{"name":"OTEL_SERVICE_NAME","value":"web=1"},{"name":"LOCKSIDECAR_CACHE_TTL","value":"1s"}]`},
		{
			[]Variable{{"OTEL_SERVICE_NAME", "of the operator"}, {"LOCKSIDECAR_LOG_LEVEL", "warn"}},
			`{"name":"LOCKSIDECAR_CACHE_TTL","value":"1s"},{"name":"OTEL_SERVICE_NAME","value":"of the operator"},{"name":"LOCKSIDECAR_LOG_LEVEL","value":"warn"}]`,
		},
	} {
		pod, err := Pod(parse(t, text), Options{Image: "i", Secret: "s", Env: test.env})
		if err != nil {
			t.Fatal(err)
		}
		own := ownSidecar(objectIn(pod, "spec"))
		if got := toJSON(t, own["env"]); !strings.HasSuffix(got, "k8s.container.name=locksidecar\"},"+test.want) || !strings.Contains(got, `{"name":"GOMEMLIMIT","value":"400MiB"}`) {
			t.Errorf("%v: %s", test.env, got)
		}
		if got := toJSON(t, own["resources"]); got != `{"limits":{"memory":"512Mi"},"requests":{"cpu":"250m","memory":"128Mi"}}` {
			t.Error(got)
		}
	}
}

// The API server's own injection reads the same names (test/k8s compares what comes of it).
// Proves: threat pod author
func TestPoliciesHaveTheSamePatterns(t *testing.T) {
	for file, patterns := range map[string][]string{
		"policy.yaml":   {foreign.String()},
		"validate.yaml": {envLine.String(), cpuAmount.String(), memory.String(), logLevel.String(), socketPath.String(), secretName.String(), imageName.String(), lockSpace.String()},
	} {
		content, err := os.ReadFile(filepath.Join("..", "..", "deploy", "injector", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, pattern := range patterns {
			if !strings.Contains(string(content), pattern) {
				t.Errorf("%s has no %s", file, pattern)
			}
		}
	}
}
