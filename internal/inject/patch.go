package inject

import (
	"maps"
	"reflect"
	"slices"
)

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch leads from a pod to Pod's result: one operation for the annotations, and one for each changed field of the
// spec as a whole. The API server applies it to the same object, so lists need no comparison. "add" also replaces.
func patch(before, after object) []operation {
	var operations []operation
	if is := objectIn(objectIn(after, "metadata"), "annotations"); !reflect.DeepEqual(objectIn(objectIn(before, "metadata"), "annotations"), is) {
		operations = append(operations, operation{"add", "/metadata/annotations", is})
	}
	was, is := objectIn(before, "spec"), objectIn(after, "spec")
	for _, field := range slices.Sorted(maps.Keys(is)) {
		if !reflect.DeepEqual(was[field], is[field]) {
			operations = append(operations, operation{"add", "/spec/" + field, is[field]})
		}
	}
	return operations
}
