package k8s

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestValidationRefusesWhatIsNotProper breaks a good pod in one place each.
// Proves: threat other container
func TestValidationRefusesWhatIsNotProper(t *testing.T) {
	good, refusal := injectOffline(t, podOf("app", optedIn, nil))
	if good == nil {
		t.Fatal(refusal)
	}
	ns := namespace(t, nil)
	installValidation(t)
	if _, err := dryRun(t, ns, good); err != nil {
		t.Fatal(err)
	}
	annotate := func(name, value string) func(object) {
		return func(pod object) { at(pod, "metadata")["annotations"] = object{"locksidecar.dev/" + name: value} }
	}
	for _, c := range []struct {
		name string
		do   func(pod object)
		want string
	}{
		{"an annotation that is none", annotate("contaners", "app"), `annotation locksidecar.dev/contaners is not known; known annotations: locksidecar.dev/image`},
		{"image", annotate("image", "a b"), `annotation locksidecar.dev/image is "a b": it must be the name of an image`},
		{"secret", annotate("secret", "A"), `annotation locksidecar.dev/secret is "A": it must be the name of a Secret`},
		{"secret's end", annotate("secret", "a-"), `it must be the name of a Secret`},
		{"socket", annotate("socket", "s"), `annotation locksidecar.dev/socket is "s": it must be an absolute path with a folder other than /etc/locksidecar and /locksidecar, of letters, digits, '.', '_' and '-', at most 107 bytes`},
		{"socket without a folder", annotate("socket", "/s"), `it must be an absolute path with a folder`},
		{"socket too long", annotate("socket", "/a/"+strings.Repeat("b", 105)), `at most 107 bytes`},
		{"socket in the store's folder", annotate("socket", "/etc/locksidecar/s"), `with a folder other than /etc/locksidecar`},
		{"socket below the store's folder", annotate("socket", "/etc/locksidecar/a/s"), `with a folder other than /etc/locksidecar`},
		{"socket where the binary is", annotate("socket", "/locksidecar/s"), `with a folder other than /etc/locksidecar and /locksidecar`},
		{"ttl", annotate("ttl", "15"), `annotation locksidecar.dev/ttl is "15": it must be a duration from 500ms to 24h, such as 15s`},
		{"ttl too short", annotate("ttl", "499ms"), `it must be a duration from 500ms`},
		{"ttl too long", annotate("ttl", "24h0.1s"), `it must be a duration from 500ms`},
		{"cpu", annotate("cpu", "0"), `annotation locksidecar.dev/cpu is "0": it must be millicores from 1m to 99999m, or cores from 1 to 99`},
		{"memory", annotate("memory", "63Mi"), `annotation locksidecar.dev/memory is "63Mi": it must be from 64Mi to 9999Mi, in Mi`},
		{"log level", annotate("log-level", "x"), `annotation locksidecar.dev/log-level is "x": it must be debug, info, warn or error`},
		{"environment", annotate("env", "PATH=/"), `annotation locksidecar.dev/env must be lines of NAME=value, each name once`},
		{"environment that is the injection's", annotate("env", "OTEL_RESOURCE_ATTRIBUTES=a=b"), `annotation locksidecar.dev/env must be lines`},
		{"environment that is twice the same", annotate("env", "OTEL_A=1\nOTEL_A=2"), `annotation locksidecar.dev/env must be lines`},
		{"namespace", annotate("namespace", "-"), `annotation locksidecar.dev/namespace is "-": it must be 1 to 255 letters, digits, '-', '.', '_', '/' or ':'`},
		{"namespace's end", annotate("namespace", "a b"), `it must be 1 to 255 letters`},
		{"containers", annotate("containers", "web,app,job"), `annotation locksidecar.dev/containers names "web", "job", which the pod does not have; its containers are app`},
		{"another socket than the sidecar's", annotate("socket", "/run/locksidecar/s"), `container "locksidecar" must set LOCKSIDECAR_SOCKET to /run/locksidecar/s`},
		{"another socket than the sidecar's default", func(pod object) {
			annotate("socket", "/run/locksidecar/s")(pod)
			delete(at(pod, "spec", "initContainers", 0), "env")
		}, `container "locksidecar" must set LOCKSIDECAR_SOCKET to /run/locksidecar/s`},
		{"no sidecar", func(pod object) { delete(at(pod, "spec"), "initContainers") }, notInjected},
		{"not native", func(pod object) {
			sidecar := at(pod, "spec", "initContainers", 0)
			for _, field := range []string{"restartPolicy", "startupProbe"} {
				delete(sidecar, field)
			}
		}, `init container "locksidecar" is no native sidecar: it needs restartPolicy: Always`},
		{"no native sidecar", func(pod object) {
			spec := at(pod, "spec")
			sidecar := at(pod, "spec", "initContainers", 0)
			delete(sidecar, "restartPolicy")
			delete(spec, "initContainers")
			spec["containers"] = append(spec["containers"].(list), sidecar)
		}, `container "locksidecar" is no native sidecar: move it to initContainers`},
		{"the sidecar's socket is elsewhere", func(pod object) { at(pod, "spec", "initContainers", 0, "env", 4)["value"] = "/run/locksidecar/other" }, `container "locksidecar" must set LOCKSIDECAR_SOCKET to /run/locksidecar/locksidecar.sock`},
		{"the sidecar mounts elsewhere", func(pod object) { at(pod, "spec", "initContainers", 0, "volumeMounts", 0)["mountPath"] = "/other" }, `container "locksidecar" must mount volume "locksidecar-socket" at /run/locksidecar, writable`},
		{"the sidecar mounts read-only", func(pod object) { at(pod, "spec", "initContainers", 0, "volumeMounts", 0)["readOnly"] = true }, `container "locksidecar" must mount volume "locksidecar-socket" at /run/locksidecar, writable`},
		{"the sidecar mounts a part", func(pod object) { at(pod, "spec", "initContainers", 0, "volumeMounts", 0)["subPath"] = "a" }, `container "locksidecar" must mount volume "locksidecar-socket" at /run/locksidecar, writable`},
		{"the volume", func(pod object) {
			volume := at(pod, "spec", "volumes", 0)
			delete(volume, "emptyDir")
			volume["hostPath"] = object{"path": "/run/locksidecar"}
		}, `volume "locksidecar-socket" must be an emptyDir`},
		{"the app has no mount", func(pod object) { delete(at(pod, "spec", "containers", 0), "volumeMounts") }, `container "app" must mount volume "locksidecar-socket" at /run/locksidecar, with readOnly: true`},
		{"the app may write", func(pod object) { delete(at(pod, "spec", "containers", 0, "volumeMounts", 0), "readOnly") }, `container "app" must mount volume "locksidecar-socket" at /run/locksidecar, with readOnly: true`},
		{"the app mounts a part", func(pod object) { at(pod, "spec", "containers", 0, "volumeMounts", 0)["subPathExpr"] = "a" }, `without subPath`},
		{"the app mounts twice, and may write", func(pod object) {
			app := at(pod, "spec", "containers", 0)
			app["volumeMounts"] = append(app["volumeMounts"].(list), object{"name": "locksidecar-socket", "mountPath": "/run/locksidecar/"})
		}, `container "app" must mount volume "locksidecar-socket" at /run/locksidecar, with readOnly: true`},
		{"the sidecar mounts twice, and may not write", func(pod object) {
			sidecar := at(pod, "spec", "initContainers", 0)
			sidecar["volumeMounts"] = append(sidecar["volumeMounts"].(list), object{"name": "locksidecar-socket", "mountPath": "/run/locksidecar/", "readOnly": true})
		}, `container "locksidecar" must mount volume "locksidecar-socket" at /run/locksidecar, writable`},
		{"the app mounts elsewhere", func(pod object) { at(pod, "spec", "containers", 0, "volumeMounts", 0)["mountPath"] = "/other" }, `container "app" mounts another volume at /run/locksidecar, or volume "locksidecar-socket" elsewhere`},
		{"the app has no variable", func(pod object) { delete(at(pod, "spec", "containers", 0), "env") }, `container "app" must set LOCKSIDECAR_SOCKET to /run/locksidecar/locksidecar.sock`},
		{"the app's variable", func(pod object) { at(pod, "spec", "containers", 0, "env", 0)["value"] = "/other" }, `container "app" must set LOCKSIDECAR_SOCKET to /run/locksidecar/locksidecar.sock`},
		{"an app's variable twice", func(pod object) {
			app := at(pod, "spec", "containers", 0)
			app["env"] = append(app["env"].(list), object{"name": "LOCKSIDECAR_SOCKET", "value": "/other"})
		}, `container "app" must set LOCKSIDECAR_SOCKET to /run/locksidecar/locksidecar.sock`},
		{"an init container", func(pod object) {
			annotate("containers", "first,app")(pod)
			spec := at(pod, "spec")
			spec["initContainers"] = append(spec["initContainers"].(list), object{"name": "first", "image": "app"})
		}, `container "first" must mount`},
		{"nobody has the socket", func(pod object) {
			delete(at(pod, "metadata"), "annotations")
			delete(at(pod, "spec", "containers", 0), "env")
			delete(at(pod, "spec", "containers", 0), "volumeMounts")
		}, `no container has the socket: name those that get it with the annotation locksidecar.dev/containers`},
		{"windows", func(pod object) {
			spec := at(pod, "spec")
			spec["os"] = object{"name": "windows"}
			delete(at(pod, "spec", "initContainers", 0), "securityContext")
		}, `spec.os.name is windows: there is no sidecar for it`},
	} {
		pod := &unstructured.Unstructured{Object: good.DeepCopy().Object}
		c.do(pod.Object)
		if _, err := dryRun(t, ns, pod); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: wanted %q, got: %v", c.name, c.want, err)
		}
	}
}

// at is the object at a path of fields and indices.
func at(value any, path ...any) object {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			value = value.(object)[step]
		case int:
			value = value.(list)[step]
		}
	}
	return value.(object)
}
