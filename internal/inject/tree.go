package inject

// apps are all containers but the sidecar.
func apps(spec object) []object {
	var found []object
	for _, field := range []string{"initContainers", "containers"} {
		for _, container := range objectsIn(spec, field) {
			if nameOf(container) != ContainerName {
				found = append(found, container)
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

// objectIn and listIn return nil where there is no such field, or of another type.
func objectIn(o object, field string) object {
	found, _ := o[field].(object)
	return found
}

func listIn(o object, field string) list {
	found, _ := o[field].(list)
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

func anyList(objects []object) list {
	var l list
	for _, o := range objects {
		l = append(l, o)
	}
	return l
}

// named is the list's object with that name, as Kubernetes merges by it.
func named(l list, name string) object {
	for _, element := range l {
		if o, ok := element.(object); ok && nameOf(o) == name {
			return o
		}
	}
	return nil
}

func nameOf(o object) string {
	name, _ := o["name"].(string)
	return name
}
