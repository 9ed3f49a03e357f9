package inject

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// maybe draws a value, or leaves the field out.
func maybe(t *rapid.T, o object, field string, values ...any) {
	if i := rapid.IntRange(-2, len(values)-1).Draw(t, field); i >= 0 {
		o[field] = values[i]
	}
}

var strange = []any{nil, "text", json.Number("9007199254740993"), true, list{}, list{nil}, object{}, list{object{"name": json.Number("1")}}}

// field draws a value that is right, but for one in thirty.
func field(t *rapid.T, o object, name string, right func() any) {
	switch n := rapid.IntRange(0, 59).Draw(t, name); {
	case n < 2:
		o[name] = rapid.SampledFrom(strange).Draw(t, "strange")
	case n < 45:
		o[name] = right()
	}
}

func listOf(t *rapid.T, element func() object) func() any {
	return func() any {
		l := list{}
		for range rapid.IntRange(0, 3).Draw(t, "length") {
			l = append(l, element())
		}
		return l
	}
}

// pods draws pods that are partly injected, partly wrong, and have fields that nobody knows.
func pods(t *rapid.T) object {
	container := func() object {
		o := object{"unknown": object{"x": list{json.Number("1.50"), "y"}}}
		maybe(t, o, "name", "app", "worker", "ä b", "", ContainerName, "istio-proxy")
		maybe(t, o, "restartPolicy", "Always")
		field(t, o, "env", listOf(t, func() object {
			v := object{}
			maybe(t, v, "name", "A", "B", socketVariable)
			maybe(t, v, "value", "/run/locksidecar/locksidecar.sock", "/run/locksidecar/locksidecar.sock", "x")
			maybe(t, v, "valueFrom", object{})
			return v
		}))
		field(t, o, "volumeMounts", listOf(t, func() object {
			m := object{}
			maybe(t, m, "name", "data", SocketVolume, StoreVolume)
			maybe(t, m, "mountPath", "/run/locksidecar", "/run/locksidecar/", "/data", "/run")
			return m
		}))
		return o
	}
	metadata := object{"name": "web"}
	field(t, metadata, "annotations", func() any {
		a := object{"other": "x"}
		maybe(t, a, ContainersAnnotation, "app", "app,worker", ",")
		maybe(t, a, SocketAnnotation, "/run/locksidecar/locksidecar.sock", "/data/s", "x")
		maybe(t, a, TTLAnnotation, "15s", json.Number("15"))
		return a
	})
	spec := object{"unknown": json.Number("9007199254740993")}
	field(t, spec, "containers", listOf(t, container))
	field(t, spec, "initContainers", listOf(t, container))
	field(t, spec, "volumes", listOf(t, func() object {
		v := object{}
		maybe(t, v, "name", "data", SocketVolume, StoreVolume)
		maybe(t, v, "emptyDir", object{}, object{"medium": "Memory"})
		return v
	}))
	field(t, spec, "hostNetwork", func() any { return true })
	field(t, spec, "securityContext", func() any { return object{"fsGroup": json.Number("1")} })
	pod := object{"metadata": metadata, "unknown": list{}}
	field(t, pod, "spec", func() any { return spec })
	return pod
}

// contains says whether all of part is in whole, where lists may have more elements.
func contains(whole, part any) bool {
	switch part := part.(type) {
	case object:
		w, ok := whole.(object)
		for name, value := range part {
			ok = ok && (value == nil || contains(w[name], value))
		}
		return ok
	case list:
		w, _ := whole.(list)
		for _, element := range w {
			if len(part) > 0 && contains(element, part[0]) {
				part = part[1:]
			}
		}
		return len(part) == 0
	}
	return whole == part
}

// Proves: threat webhook client
func TestInjectionKeepsItsPromises(t *testing.T) {
	injections := 0
	promises := func(t *rapid.T) {
		pod := pods(t)
		before := clone(pod)
		injected, err := Pod(pod, defaults)
		if !reflect.DeepEqual(pod, before) {
			t.Fatal("the argument was changed")
		}
		if err != nil {
			if injected != nil {
				t.Fatal("a pod beside an error")
			}
			return
		}
		injections++
		again, err := Pod(injected, defaults)
		if err != nil || !reflect.DeepEqual(again, injected) {
			t.Fatalf("again: %v\n%v\n%v", err, again, injected)
		}
		if !contains(injected, before) {
			t.Fatalf("lost: %v\n%v", before, injected)
		}
		other, err := Pod(pod, defaults)
		if err != nil || !reflect.DeepEqual(other, injected) {
			t.Fatal("the same pod, another result")
		}
		proper(t, injected)
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 10 { // most pods are refused
			promises(t)
		}
	})
	if t.Logf("%d injections", injections); injections == 0 {
		t.Error("no pod could be injected: the generator proves nothing")
	}
}

// proper fails unless all who shall have the socket have it.
func proper(t *rapid.T, pod object) {
	s, err := settingsOf(objectIn(objectIn(pod, "metadata"), "annotations"), false, defaults)
	if err != nil {
		t.Fatal(err)
	}
	spec := objectIn(pod, "spec")
	if ownSidecar(spec)["restartPolicy"] != "Always" {
		t.Fatal("no sidecar")
	}
	if v := named(listIn(spec, "volumes"), SocketVolume); v == nil || !isEmptyDir(v) {
		t.Fatal("no volume for the socket")
	}
	for _, app := range apps(spec) {
		mount, env := named(listIn(app.object, "volumeMounts"), SocketVolume), named(listIn(app.object, "env"), socketVariable)
		if s.wants(app.name()) && (mount == nil || env["value"] != s.socket) {
			t.Fatalf("%s has no socket: %v", app.path, app.object)
		}
	}
}

func FuzzDocuments(f *testing.F) {
	for _, seed := range []string{
		"# c\n--- # x\nkind: A\n...\n%YAML 1.2\n---\r\napiVersion: v1\r\nkind: Pod\r\nspec: {}\r\n",
		`{"kind":"List","items":[{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"a","env":[]}]}}]} {"a":1}`,
		"--- {a: &a [1], b: *a}\n--- |\n x\n", "{kind: A}\n{b: 1}", "a: 1\u2028---\n", "kind: Pod\napiVersion: v1\nspec: {x: .inf, ? [a] : b}",
		"apiVersion: v1\nkind: Pod\nmetadata: {labels: {locksidecar.dev/inject: 'true'}}\nspec: {}\n", "\ufeff---\n", "a: 1\r---\r",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := documents(t, text, true)
		if err != nil {
			return
		}
		if got.OptedIn == 0 && string(got.Stream) != strings.TrimPrefix(text, "\ufeff") {
			t.Fatalf("changed, though nothing was injected: %q", got.Stream)
		}
		again, err := documents(t, string(got.Stream), true)
		if err != nil || !bytes.Equal(again.Stream, got.Stream) || again.OptedIn != got.OptedIn || again.Workloads != got.Workloads {
			t.Fatalf("again: %v, %+v\n%q\n%q", err, again, again.Stream, got.Stream)
		}
	})
}
