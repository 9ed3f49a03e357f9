package inject

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// A pod has the lock server of its node by its own label, or by its namespace's if it has none.
func TestNodeLabel(t *testing.T) {
	for _, c := range []struct {
		labels  string
		node    bool
		volume  bool
		sidecar bool
	}{
		{`{locksidecar.dev/inject: node}`, false, true, false},
		{`{locksidecar.dev/inject: node}`, true, true, false},
		{`{}`, true, true, false},
		{`{locksidecar.dev/inject: "true"}`, true, false, true},
		{`{}`, false, false, true},
	} {
		o := defaults
		o.Node = c.node
		injected, err := Pod(parse(t, "{metadata: {labels: "+c.labels+"}, spec: {containers: [{name: app}]}}"), o)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		spec := objectIn(injected, "spec")
		if v := named(listIn(spec, "volumes"), SocketVolume); isNodeVolume(v) != c.volume || (ownSidecar(spec) != nil) != c.sidecar {
			t.Errorf("%+v: %s", c, toJSON(t, injected))
		}
	}
}

// Annotations for a sidecar are refused in node mode, where they would have no effect.
func TestNodeErrors(t *testing.T) {
	for _, test := range []struct{ annotations, spec, says string }{
		{`locksidecar.dev/secret: x`, `containers: [{name: a}]`, "annotation locksidecar.dev/secret is for a sidecar"},
		{`locksidecar.dev/namespace: x`, `containers: [{name: a}]`, "annotation locksidecar.dev/namespace is for a sidecar"},
		{`locksidecar.dev/socket: /locks/s`, `containers: [{name: a}]`, "names the file locksidecar.sock"},
		{``, `containers: [{name: a}], initContainers: [{name: locksidecar, restartPolicy: Always}]`, "spec.initContainers[locksidecar] is a sidecar"},
		{``, `containers: [{name: a}, {name: locksidecar}]`, "spec.containers[locksidecar] is a sidecar"},
		{``, `containers: [{name: a}], volumes: [{name: locksidecar-socket, emptyDir: {}}]`, "must be csi: {driver: csi.locksidecar.dev, readOnly: true}"},
		{``, `containers: [{name: a}], volumes: [{name: locksidecar-socket, csi: {driver: csi.locksidecar.dev}}]`, "must be csi: {driver: csi.locksidecar.dev, readOnly: true}"},
		{``, `containers: [{name: a, volumeMounts: [{name: locksidecar-socket, mountPath: /run/locksidecar}]}]`, "with readOnly: true"},
		{``, `os: {name: windows}, containers: [{name: a}]`, "windows"},
	} {
		_, err := Pod(parse(t, "{metadata: {labels: {locksidecar.dev/inject: node}, annotations: {"+test.annotations+"}}, spec: {"+test.spec+"}}"), defaults)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v", test, err)
		}
	}
	_, err := Pod(parse(t, `{metadata: {labels: {locksidecar.dev/inject: node}, annotations: {locksidecar.dev/socket: /locks/locksidecar.sock}}, spec: {containers: [{name: a}]}}`), defaults)
	if err != nil {
		t.Error(err)
	}
}

// Offline, a Namespace with the label opts its pods in; the webhook has a path for them.
func TestNodeLabelOfANamespace(t *testing.T) {
	got, err := documents(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {locksidecar.dev/inject: node}}\n---\n"+
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\nspec: {template: {spec: {containers: [{name: app}]}}}\n", false)
	if err != nil || got.OptedIn != 1 || sidecarsIn(got.Stream) != 0 || !strings.Contains(string(got.Stream), nodeDriver) {
		t.Errorf("%v, %+v\n%s", err, got, got.Stream)
	}
	c := start(t, time.Now().Add(time.Hour))
	for path, want := range map[string]string{"/mutate": `"emptyDir"`, "/mutate/node": nodeDriver} {
		a := c.do("POST", path, "application/json", strings.NewReader(reviewOf("CREATE", "Pod", `{"metadata":{},"spec":{"containers":[{"name":"web"}]}}`)))
		var out review
		if err := json.Unmarshal([]byte(a.body), &out); err != nil || a.status != 200 || !strings.Contains(string(out.Response.Patch), want) {
			t.Errorf("%s: %d %s, %v", path, a.status, a.body, err)
		}
	}
}

// The name of the plugin is the same everywhere, and so is that of the socket.
func TestNodeNames(t *testing.T) {
	for _, file := range []string{"../csi/config.go", "../../deploy/node.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), nodeDriver) {
			t.Errorf("%s: %v", file, err)
		}
	}
	if !strings.HasSuffix(settingsSocket(t), "/"+hostfolder.Socket) {
		t.Errorf("%s is not %s", settingsSocket(t), hostfolder.Socket)
	}
}

func settingsSocket(t *testing.T) string {
	t.Helper()
	s, err := settingsOf(nil, true, defaults)
	if err != nil {
		t.Fatal(err)
	}
	return s.socket
}
