package inject

import (
	"maps"
	"reflect"
	"slices"
)

// operation is one of JSON Patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch leads from a pod to what Pod made of it: one operation for the annotations, and one
// for each field of the spec, that is another, as a whole. Lists are not told apart by their elements: the API server
// applies the patch to the very object that was asked about. "add" replaces, too.
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
