package k8s

import (
	"fmt"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// generated returns n pods with the label, always the same ones. Many have something that
// the sidecar needs, right or wrong, so that about a third cannot be injected.
func generated(n int) []*unstructured.Unstructured {
	g := generator{rand.New(rand.NewPCG(15624, 1))}
	pods := make([]*unstructured.Unstructured, n)
	for i := range pods {
		pods[i] = g.pod(fmt.Sprintf("generated-%d", i))
	}
	return pods
}

type generator struct{ *rand.Rand }

type (
	object = map[string]any
	list   = []any
)

// rarely is true in one of 25 cases: a pod has many places where it may be wrong.
func (g generator) rarely() bool { return g.IntN(25) == 0 }

func (g generator) sometimes() bool { return g.IntN(3) == 0 }

func (g generator) pod(name string) *unstructured.Unstructured {
	annotations := g.annotations()
	socket, folder := "/run/locksidecar/locksidecar.sock", "/run/locksidecar"
	if value := annotations["locksidecar.dev/socket"]; value == "/var/run/l/s" {
		socket, folder = "/var/run/l/s", "/var/run/l"
	}
	var containers, initContainers list
	for i := range 1 + g.IntN(3) {
		containers = append(containers, g.container([]string{"a", "b", "c"}[i], socket, folder))
	}
	for i := range g.IntN(3) {
		c := g.container([]string{"d", "e"}[i], socket, folder)
		if g.sometimes() {
			c["restartPolicy"] = "Always"
		}
		initContainers = append(initContainers, c)
	}
	if g.sometimes() && g.sometimes() {
		at := g.IntN(len(initContainers) + 1)
		initContainers = append(initContainers[:at:at], append(list{g.sidecar(socket, folder)}, initContainers[at:]...)...)
	}
	if g.rarely() {
		containers = append(containers, object{"name": "locksidecar", "image": "other"})
	}
	spec := object{"containers": containers, "volumes": g.volumes()}
	if len(initContainers) > 0 {
		spec["initContainers"] = initContainers
	}
	if g.sometimes() {
		spec["hostNetwork"] = true
	}
	if g.rarely() {
		spec["os"] = object{"name": "windows"}
	}
	pod := podOf(name, optedIn, annotations)
	pod.Object["spec"] = spec
	return pod
}

func (g generator) annotations() map[string]string {
	values := map[string][2][]string{ // right, wrong
		"image":                   {{"a", "registry:5000/x/y:v1", "a@sha256:0"}, {"", " a", "-a", "a b", "ä"}},
		"secret":                  {{"s", "a.b-c"}, {"", "A", "a_b", "-", "a-"}},
		"containers":              {{"a", "a,a"}, {"", ",", "a,", "a, b", "z", "locksidecar", "a,d,e"}}, // the last is sometimes right
		"socket":                  {{"/var/run/l/s"}, {"", "/", "/s", "s", "/a/", "/a//b", "/a/../b", "/etc/locksidecar/s", "/etc/locksidecar/a/s", "/locksidecar/s", "/.a/b", "/a b/c", "//a"}},
		"ttl":                     {{"15s", "500ms", "24h", "1m30s", "1.5s", "+2s", ".5s", "5.s", "500000µs", "500000μs", "1h1us1ns"}, {"", "15", "499ms", "24h1ns", "-5s", "1d", "0", ".s", "s", "1 s", "9999999999999999999h"}},
		"cpu":                     {{"1m", "2"}, {"", "0", "1.5", "100000m"}},
		"cpu-limit":               {{"10m", "2"}, {"", "0", "1.5", "9m", "1m"}},
		"ephemeral-storage":       {{"1Mi", "100Mi"}, {"", "0", "1Gi"}},
		"ephemeral-storage-limit": {{"100Mi", "99999Mi"}, {"", "100000Mi", "1"}},
		"image-pull-policy":       {{"Always", "IfNotPresent", "Never"}, {"", "always"}},
		"memory":                  {{"64Mi", "9999Mi", "300Mi"}, {"", "63Mi", "128M", "x"}},
		"log-level":               {{"debug", "error"}, {"", "Info"}},
		"env":                     {{"OTEL_A=", "OTEL_A=b=c\n\nLOCKSIDECAR_BATCH_MAX=5\n"}, {"", "\n", "A=b", "OTEL_A", "OTEL_A=1\nOTEL_A=2", "OTEL_RESOURCE_ATTRIBUTES=x", "LOCKSIDECAR_STORE_URL=memory://", "OTEL_A=ä"}},
		"namespace":               {{"shop", "a/b:c.d_e-f"}, {"", "-a", "a b", "$(POD_NAME)"}},
	}
	annotations := map[string]string{}
	for _, name := range []string{"image", "secret", "containers", "socket", "ttl", "namespace", "cpu", "cpu-limit", "memory", "ephemeral-storage", "ephemeral-storage-limit", "image-pull-policy", "log-level", "env"} {
		if g.sometimes() && !(name == "cpu-limit" && annotations["locksidecar.dev/cpu"] == "2") {
			of := values[name][0]
			if g.IntN(8) == 0 {
				of = values[name][1]
			}
			annotations["locksidecar.dev/"+name] = of[g.IntN(len(of))]
		}
	}
	return annotations
}

// container has, or has not, what injection would add to it.
func (g generator) container(name, socket, folder string) object {
	c := object{"name": name, "image": "app"}
	if g.sometimes() {
		env := list{object{"name": "OTHER", "value": "1"}}
		if g.sometimes() {
			env = append(env, g.variable(socket))
			if g.rarely() {
				env = append(env, g.variable(socket))
			}
		}
		c["env"] = env
	}
	if g.sometimes() {
		mounts := list{object{"name": "other", "mountPath": "/other"}}
		switch {
		case g.sometimes():
			mounts = append(mounts, g.mount(folder, true))
		case g.rarely():
			mounts = append(mounts, object{"name": "other", "mountPath": folder})
		}
		c["volumeMounts"] = mounts
	}
	return c
}

func (g generator) variable(socket string) object {
	switch {
	case g.rarely():
		return object{"name": "LOCKSIDECAR_SOCKET", "value": "/elsewhere/s"}
	case g.rarely():
		return object{"name": "LOCKSIDECAR_SOCKET", "valueFrom": object{"fieldRef": object{"fieldPath": "metadata.name"}}}
	}
	return object{"name": "LOCKSIDECAR_SOCKET", "value": socket}
}

func (g generator) mount(folder string, readOnly bool) object {
	m := object{"name": "locksidecar-socket", "mountPath": folder}
	if readOnly != g.rarely() {
		m["readOnly"] = true
	}
	switch {
	case g.rarely():
		m["mountPath"] = "/elsewhere"
	case g.sometimes():
		m["mountPath"] = folder + "/"
	case g.rarely():
		m["subPath"] = "sub"
	case g.rarely():
		m["subPathExpr"] = "$(OTHER)"
	}
	return m
}

// sidecar is one of the pod's own.
func (g generator) sidecar(socket, folder string) object {
	c := object{"name": "locksidecar", "image": "own", "restartPolicy": "Always"}
	if g.sometimes() {
		c["volumeMounts"] = list{g.mount(folder, false), object{"name": "other", "mountPath": "/other"}}
	} else if !g.rarely() {
		c["volumeMounts"] = list{g.mount(folder, false)}
	}
	if !g.sometimes() {
		c["env"] = list{g.variable(socket)}
	}
	if g.rarely() {
		delete(c, "restartPolicy")
	}
	return c
}

func (g generator) volumes() list {
	volumes := list{object{"name": "other", "emptyDir": object{}}}
	switch {
	case g.rarely():
		volumes = append(volumes, object{"name": "locksidecar-socket", "hostPath": object{"path": "/run"}})
	case g.sometimes():
		volumes = append(volumes, object{"name": "locksidecar-socket", "emptyDir": object{}})
	}
	if g.sometimes() {
		volumes = append(volumes, object{"name": "locksidecar-store", "configMap": object{"name": "own"}})
	}
	return volumes
}
