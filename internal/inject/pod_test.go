package inject

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/locksidecar/locksidecar/internal/config"
)

var update = flag.Bool("update", false, "write the golden files anew")

var defaults = Options{Image: DefaultImage, Secret: DefaultSecret, User: DefaultUser}

// parse reads YAML as Documents does.
func parse(t testing.TB, text string) object {
	t.Helper()
	d := document{body: text}
	if err := d.decode(); err != nil {
		t.Fatal(err)
	}
	o, ok := d.value.(object)
	if !ok {
		t.Fatalf("no object: %s", text)
	}
	return o
}

// Proves: threat other container
func TestPodsAreInjectedAsTheGoldenFilesSay(t *testing.T) {
	inputs, err := filepath.Glob("testdata/pods/*.yaml")
	if err != nil || len(inputs) < 5 {
		t.Fatal(inputs, err)
	}
	for _, input := range inputs {
		if strings.HasSuffix(input, ".injected.yaml") {
			continue
		}
		t.Run(filepath.Base(input), func(t *testing.T) {
			text, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			pod := parse(t, string(text))
			injected, err := Pod(pod, defaults)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(pod, parse(t, string(text))) {
				t.Error("the argument was changed")
			}
			got, err := yaml.Marshal(injected)
			if err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(input, ".yaml") + ".injected.yaml"
			if *update {
				if err := os.WriteFile(golden, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v; got:\n%s", err, got)
			}
			again, err := Pod(injected, defaults)
			if err != nil || toJSON(t, again) != toJSON(t, injected) {
				t.Errorf("again: %v, %s", err, toJSON(t, again))
			}
		})
	}
}

// The sidecar must start with the variables that it gets: it refuses what it does not
// understand, and a pod would never come up.
func TestTheSidecarTakesItsVariables(t *testing.T) {
	secret := filepath.Join(t.TempDir(), StoreKey)
	if err := os.WriteFile(secret, []byte("postgres://db.example/locks"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, annotations := range []string{
		"{}",
		"{locksidecar.dev/ttl: 500ms}",
		"{locksidecar.dev/ttl: 24h, locksidecar.dev/namespace: a/b:c_d.e-f}",
		"{locksidecar.dev/socket: /" + strings.Repeat("d", 104) + "/s}",
		"{locksidecar.dev/cpu: 1m, locksidecar.dev/memory: 64Mi, locksidecar.dev/log-level: warn, locksidecar.dev/env: " +
			`"LOCKSIDECAR_RENEW_INTERVAL=1s\nLOCKSIDECAR_STORE_TIMEOUT=2s\nLOCKSIDECAR_CACHE_SIZE=1\nLOCKSIDECAR_CACHE_TTL=1s\nLOCKSIDECAR_KEEP=200ms\nLOCKSIDECAR_BATCH_MAX=10\n` +
			`LOCKSIDECAR_MAX_SESSIONS=10\nLOCKSIDECAR_MAX_LOCKS_PER_SESSION=10\nLOCKSIDECAR_MAX_WAITERS=10\nLOCKSIDECAR_MAX_BODY=64KiB\n` +
			`LOCKSIDECAR_DRAIN_TIMEOUT=1s\nLOCKSIDECAR_LOG_FORMAT=text"}`,
		"{locksidecar.dev/namespace: " + strings.Repeat("n", 255) + "}",
	} {
		pod := parse(t, "{metadata: {annotations: "+annotations+"}, spec: {containers: [{name: app}]}}")
		injected, err := Pod(pod, defaults)
		if err != nil {
			t.Errorf("%s: %v", annotations, err)
			continue
		}
		variables := map[string]string{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
		for _, v := range objectsIn(ownSidecar(objectIn(injected, "spec")), "env") {
			variables[nameOf(v)] = strings.ReplaceAll(textIn(v, "value"), "$(POD_NAMESPACE)", "default")
		}
		if variables["LOCKSIDECAR_STORE_URL_FILE"] != "/etc/locksidecar/store-url" {
			t.Error(variables)
		}
		variables["LOCKSIDECAR_STORE_URL_FILE"] = secret
		variables["POD_NAME"] = "web-0"
		if _, warnings, err := config.Load(config.FromMap(variables)); err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, %q", annotations, err, warnings)
		}
	}
}

func TestOptionsReachTheSidecar(t *testing.T) {
	o := Options{Image: "i:1", Secret: "s", Env: []Variable{{"OTEL_TRACES_EXPORTER", "otlp"}, {"LOCKSIDECAR_LOG_LEVEL", "debug"}}}
	injected, err := Pod(parse(t, "spec: {containers: [{name: app}]}"), o)
	if err != nil {
		t.Fatal(err)
	}
	text := toJSON(t, injected)
	for _, part := range []string{
		`"image":"i:1"`, `"secretName":"s"`, `{"name":"OTEL_TRACES_EXPORTER","value":"otlp"},{"name":"LOCKSIDECAR_LOG_LEVEL","value":"debug"}]`,
	} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
}

func TestErrorsSayWhatWouldBeRight(t *testing.T) {
	const own = "initContainers: [{name: locksidecar, restartPolicy: Always, volumeMounts: [{name: locksidecar-socket, mountPath: /run/locksidecar}]}]"
	for _, test := range []struct{ pod, says string }{
		{`{}`, "spec is missing"},
		{`spec: []`, "spec is of type array: it must be an object"},
		{`{metadata: x, spec: {}}`, "metadata is of type string: it must be an object"},
		{`{metadata: {annotations: [x]}, spec: {}}`, "metadata.annotations is of type array: it must be an object"},
		{`spec: {containers: {name: x}}`, "spec.containers is of type object: it must be a list"},
		{`spec: {containers: [{name: a}, {name: b, env: x}]}`, "spec.containers.env is of type string: it must be a list"},
		{`spec: {initContainers: [{env: [{name: A, value: 1}]}]}`, "spec.initContainers.env.value is of type number: it must be a string, in quotes"},
		{`spec: {initContainers: [{restartPolicy: true}]}`, "spec.initContainers.restartPolicy is of type bool: it must be a string, in quotes"},
		{`spec: {containers: [{volumeMounts: [7]}]}`, "spec.containers.volumeMounts is of type number: it must be an object"},
		{`spec: {containers: [{volumeMounts: [{mountPath: {}}]}]}`, "spec.containers.volumeMounts.mountPath is of type object: it must be a string"},
		{`spec: {volumes: [{name: 1}]}`, "spec.volumes.name is of type number"},
		{`spec: {hostNetwork: "true"}`, "spec.hostNetwork is of type string: it must be true or false"},
		{`spec: {os: {name: windows}}`, "spec.os.name is windows"},
		{`spec: {os: linux}`, "spec.os is of type string"},

		{`spec: {containers: [{name: locksidecar}]}`, "spec.containers[locksidecar] is no native sidecar: move it"},
		{`spec: {initContainers: [{name: locksidecar}]}`, "it needs restartPolicy: Always"},
		{`spec: {initContainers: [{name: locksidecar, restartPolicy: Always}]}`, "spec.initContainers[locksidecar] must mount the volume locksidecar-socket at /run/locksidecar"},
		{`{metadata: {annotations: {locksidecar.dev/socket: /a/s}}, spec: {` + own + `}}`, "spec.initContainers[locksidecar] must set LOCKSIDECAR_SOCKET to /a/s"},
		{`{metadata: {annotations: {locksidecar.dev/socket: /a/s}}, spec: {` + own + `}}`, "at /run/locksidecar: the socket's folder is /a"},
		{`spec: {initContainers: [{name: locksidecar, restartPolicy: Always, env: [{name: LOCKSIDECAR_SOCKET, value: /b/s}]}]}`, `sets LOCKSIDECAR_SOCKET to "/b/s"`},
		{`spec: {initContainers: [{name: locksidecar, restartPolicy: Always, volumeMounts: [{name: locksidecar-socket, mountPath: /run/locksidecar, readOnly: true}]}]}`, "spec.initContainers[locksidecar] must mount the volume locksidecar-socket with readOnly: false"},
		{`spec: {containers: [{name: a, volumeMounts: [{name: locksidecar-socket, mountPath: /run/locksidecar}]}]}`, "spec.containers[a] must mount the volume locksidecar-socket with readOnly: true"},
		{`spec: {containers: [{name: a, volumeMounts: [{name: locksidecar-socket, mountPath: /run/locksidecar, readOnly: true, subPath: b}]}]}`, "spec.containers[a] must mount the volume locksidecar-socket without subPath"},
		{`{metadata: {labels: {locksidecar.dev/inject: "yes"}}, spec: {}}`, `metadata.labels[locksidecar.dev/inject] is "yes": it must be "true", "node" or "false", in quotes`},
		{`{metadata: {annotations: {locksidecar.dev/contaners: a}}, spec: {}}`, "annotation locksidecar.dev/contaners is not known; known annotations: locksidecar.dev/image, "},
		{`spec: {volumes: [{name: locksidecar-socket, hostPath: {path: /run}}]}`, "spec.volumes[locksidecar-socket] must be an emptyDir"},

		{`spec: {containers: [{name: a, volumeMounts: [{name: c, mountPath: /run/locksidecar}]}]}`, "spec.containers[a] mounts the volume c at /run/locksidecar, where"},
		{`spec: {containers: [{name: a, volumeMounts: [{name: c, mountPath: /run/locksidecar/}]}]}`, "spec.containers[a] mounts the volume c at /run/locksidecar/, where"},
		{`spec: {initContainers: [{name: a, volumeMounts: [{name: locksidecar-socket, mountPath: /s}]}]}`, "spec.initContainers[a] mounts the volume locksidecar-socket at /s: the socket's folder is /run/locksidecar"},
		{`spec: {containers: [{name: a, env: [{name: LOCKSIDECAR_SOCKET, value: ""}]}]}`, `spec.containers[a] sets LOCKSIDECAR_SOCKET to ""`},
		{`spec: {containers: [{name: a, env: [{name: LOCKSIDECAR_SOCKET, valueFrom: {}}]}]}`, "to something from valueFrom"},
		{`spec: {containers: [{name: a, env: [{name: LOCKSIDECAR_SOCKET, value: /run/locksidecar/locksidecar.sock}, {name: LOCKSIDECAR_SOCKET, value: /x}]}]}`, `to "/x"`},
	} {
		_, err := Pod(parse(t, test.pod), defaults)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v; want %q", test.pod, err, test.says)
		}
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	_, err := Pod(parse(t, `{spec: {os: {name: windows}, initContainers: [{name: locksidecar}],
		containers: [{name: a, volumeMounts: [{name: c, mountPath: /run/locksidecar}]}, {name: b, env: [{name: LOCKSIDECAR_SOCKET, value: x}]}]}}`), defaults)
	if n := len(strings.Split(err.Error(), "\n")); n != 5 {
		t.Errorf("%d errors: %v", n, err)
	}
}
