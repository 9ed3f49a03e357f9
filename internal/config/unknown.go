package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// unknown lists LOCKSIDECAR_ variables that mean nothing to the sidecar, in one
// sentence. It is a warning only: Kubernetes injects such variables for a
// service of that name. Values are not shown, they may be secret.
func unknown(environ []string) []string {
	known := Variables()
	var names []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, Prefix) && !slices.Contains(known, name) {
			names = append(names, name)
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)
	return []string{fmt.Sprintf("these variables are not known and have no effect: %s", strings.Join(names, ", "))}
}

// Variables lists the full names of all variables that Load understands.
func Variables() []string {
	fields := reflect.TypeFor[raw]()
	names := make([]string, 0, fields.NumField())
	for field := range fields.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("env"), ",")
		names = append(names, Prefix+name)
	}
	return names
}
