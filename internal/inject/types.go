package inject

import (
	"encoding/json"
	"errors"
	"fmt"
)

// checkTypes checks all fields that the function reads: the rest relies on it. null is absent.
func checkTypes(pod object) error {
	c := &typeCheck{}
	metadata := c.object(pod, "", "metadata")
	c.object(metadata, "metadata", "annotations")
	if pod["spec"] == nil {
		return errors.Join(append(c.errs, errors.New("spec is missing"))...)
	}
	spec := c.object(pod, "", "spec")
	c.text(c.object(spec, "spec", "os"), "spec.os", "name")
	if v := spec["hostNetwork"]; v != nil && typeOf(v) != aBoolean {
		c.wrong("spec.hostNetwork", v, aBoolean)
	}
	c.each(spec, "spec", "volumes", func(volume object, path string) { c.text(volume, path, "name") })
	for _, field := range containerFields {
		c.each(spec, "spec", field, func(container object, path string) {
			c.text(container, path, "name")
			c.text(container, path, "restartPolicy")
			c.each(container, path, "volumeMounts", func(mount object, path string) {
				c.text(mount, path, "name")
				c.text(mount, path, "mountPath")
			})
			c.each(container, path, "env", func(variable object, path string) {
				c.text(variable, path, "name")
				c.text(variable, path, "value")
			})
		})
	}
	return errors.Join(c.errs...)
}

// The types of JSON, as errors name them.
const (
	anObject = "an object"
	aList    = "a list"
	aString  = "a string"
	aNumber  = "a number"
	aBoolean = "true or false"
)

func typeOf(value any) string {
	switch value.(type) {
	case object:
		return anObject
	case list:
		return aList
	case string:
		return aString
	case bool:
		return aBoolean
	case nil:
		return "null"
	case json.Number, float64, int, int64:
		return aNumber
	}
	return fmt.Sprintf("%T", value)
}

// typeCheck collects wrong types. Its methods return zero for a field that is absent, null or wrong.
type typeCheck struct{ errs []error }

func (c *typeCheck) wrong(path string, value any, right string) {
	if is := typeOf(value); right == aString && (is == aNumber || is == aBoolean) {
		right += ", in quotes"
	}
	c.errs = append(c.errs, fmt.Errorf("%s is %s: it must be %s", path, typeOf(value), right))
}

func (c *typeCheck) object(parent object, path, field string) object {
	value := parent[field]
	if value != nil && typeOf(value) != anObject {
		c.wrong(join(path, field), value, anObject)
	}
	return objectIn(parent, field)
}

func (c *typeCheck) text(parent object, path, field string) {
	if value := parent[field]; value != nil && typeOf(value) != aString {
		c.wrong(join(path, field), value, aString)
	}
}

func (c *typeCheck) each(parent object, path, field string, visit func(element object, path string)) {
	path = join(path, field)
	if value := parent[field]; value != nil && typeOf(value) != aList {
		c.wrong(path, value, aList)
	}
	for i, element := range listIn(parent, field) {
		at := fmt.Sprintf("%s[%d]", path, i)
		if typeOf(element) == anObject {
			visit(element.(object), at)
		} else {
			c.wrong(at, element, anObject)
		}
	}
}

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}
