package inject

import "fmt"

// object and list are the types of decoded JSON. They keep unknown fields.
type (
	object = map[string]any
	list   = []any
)

var containerFields = []string{"initContainers", "containers"}

type app struct {
	path   string
	init   bool
	object object
}

func (a app) name() string { return nameOf(a.object) }

func apps(spec object) []app {
	var found []app
	for _, field := range containerFields {
		for _, container := range objectsIn(spec, field) {
			if nameOf(container) != ContainerName {
				found = append(found, app{fmt.Sprintf("spec.%s[%s]", field, nameOf(container)), field == "initContainers", container})
			}
		}
	}
	return found
}

func clone(value any) any {
	switch value := value.(type) {
	case object:
		copied := make(object, len(value))
		for name, field := range value {
			copied[name] = clone(field)
		}
		return copied
	case list:
		copied := make(list, len(value))
		for i, element := range value {
			copied[i] = clone(element)
		}
		return copied
	}
	return value
}

// objectIn and listIn return nil if the field is missing or of another type.
func objectIn(o object, field string) object {
	found, _ := o[field].(object)
	return found
}

func listIn(o object, field string) list {
	found, _ := o[field].(list)
	return found
}

func textIn(o object, field string) string {
	found, _ := o[field].(string)
	return found
}

func objectsIn(o object, field string) []object {
	var found []object
	for _, element := range listIn(o, field) {
		if element, ok := element.(object); ok {
			found = append(found, element)
		}
	}
	return found
}

// named is the list's object with that name. Kubernetes also merges by name.
func named(l list, name string) object {
	for _, element := range l {
		if o, ok := element.(object); ok && nameOf(o) == name {
			return o
		}
	}
	return nil
}

func nameOf(o object) string { return textIn(o, "name") }
