package inject

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The patch does the same as Pod.
func TestPatchIsPod(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		before := fromJSON(rt, toJSON(rt, patchable().Draw(rt, "pod")))
		after, err := Pod(before, Options{Image: DefaultImage, Secret: DefaultSecret, User: DefaultUser})
		if err != nil {
			rt.Skip(err)
		}
		operations, err := json.Marshal(patch(before, after))
		if err != nil {
			rt.Fatal(err)
		}
		sameJSON(rt, applied(rt, before, operations), after)
		if again := patch(after, after); again != nil {
			rt.Errorf("without a change: %v", again)
		}
		if strings.Count(string(operations), `"path":"/metadata`) > strings.Count(string(operations), `"path":"/metadata/annotations"`) {
			rt.Errorf("other metadata is not ours: %s", operations)
		}
	})
}

// patchable has what Pod looks at, in all shapes, and what it does not know.
func patchable() *rapid.Generator[object] {
	numbers := rapid.SampledFrom([]any{json.Number("12345678901234567890"), json.Number("1.50"), json.Number("1e3"), "<&>", nil, true})
	name := rapid.SampledFrom([]string{"a", "b", "c", ContainerName})
	container := rapid.Custom(func(t *rapid.T) object {
		c := object{"name": name.Draw(t, "name"), "unknown/~field": numbers.Draw(t, "unknown")}
		if c["name"] == ContainerName {
			c["restartPolicy"] = "Always"
		}
		if rapid.Bool().Draw(t, "has env") {
			c["env"] = rapid.SampledFrom([]any{nil, list{}, list{variable("A", "1")}}).Draw(t, "env")
		}
		if rapid.Bool().Draw(t, "has mounts") {
			c["volumeMounts"] = list{object{"name": "data", "mountPath": "/data"}}
		}
		return c
	})
	several := func(t *rapid.T, field string, spec object) {
		switch rapid.IntRange(0, 3).Draw(t, field) {
		case 0:
		case 1:
			spec[field] = nil
		default:
			l := list{}
			for _, c := range rapid.SliceOfNDistinct(container, 0, 3, nameOf).Draw(t, "list") {
				l = append(l, c)
			}
			spec[field] = l
		}
	}
	return rapid.Custom(func(t *rapid.T) object {
		spec := object{"priority": numbers.Draw(t, "priority"), "hostNetwork": rapid.Bool().Draw(t, "host")}
		several(t, "containers", spec)
		several(t, "initContainers", spec)
		if rapid.Bool().Draw(t, "has volumes") {
			spec["volumes"] = list{object{"name": "data", "emptyDir": object{"sizeLimit": numbers.Draw(t, "size")}}}
		}
		return object{"metadata": object{"labels": object{Label: "true"}, "generation": numbers.Draw(t, "generation")}, "spec": spec}
	})
}

// applied is as much of RFC 6902 as the patches need.
func applied(t fataler, to object, operations []byte) object {
	var ops []operation
	if err := decodeInto(operations, &ops); err != nil {
		t.Fatalf("%v: %s", err, operations)
	}
	to, _ = clone(to).(object)
	for _, op := range ops {
		names := strings.Split(strings.TrimPrefix(op.Path, "/"), "/")
		target := to
		for _, name := range names[:len(names)-1] {
			if target = objectIn(target, unescaped.Replace(name)); target == nil {
				t.Fatalf("there is no %s", op.Path)
			}
		}
		if op.Op != "add" {
			t.Fatalf("operation %q", op.Op)
		}
		target[unescaped.Replace(names[len(names)-1])] = op.Value
	}
	return to
}

var unescaped = strings.NewReplacer("~1", "/", "~0", "~")

// fataler is testing.T or rapid.T.
type fataler interface {
	Fatalf(format string, args ...any)
}

func sameJSON(t fataler, got, want object) {
	if g, w := toJSON(t, got), toJSON(t, want); g != w {
		t.Fatalf("got  %s\nwant %s", g, w)
	}
}

// toJSON writes fields in the order of their names, and numbers as they are.
func toJSON(t fataler, value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(text)
}

func fromJSON(t fataler, text string) object {
	var value object
	if err := decodeInto([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return value
}

func decodeInto(text []byte, into any) error {
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	return decoder.Decode(into)
}
