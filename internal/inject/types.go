package inject

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// shape contains the fields of a pod that this package reads.
type shape struct {
	Metadata struct {
		Labels      map[string]any `json:"labels"`
		Annotations map[string]any `json:"annotations"`
	} `json:"metadata"`
	Spec *struct {
		OS             nameShape        `json:"os"`
		HostNetwork    bool             `json:"hostNetwork"`
		Volumes        []nameShape      `json:"volumes"`
		InitContainers []containerShape `json:"initContainers"`
		Containers     []containerShape `json:"containers"`
	} `json:"spec"`
}

type containerShape struct {
	nameShape

	RestartPolicy string `json:"restartPolicy"`
	VolumeMounts  []struct {
		nameShape

		MountPath string `json:"mountPath"`
	} `json:"volumeMounts"`
	Env []struct {
		nameShape

		Value string `json:"value"`
	} `json:"env"`
}

type nameShape struct {
	Name string `json:"name"`
}

// checkTypes checks the types of all these fields, on which the other functions rely. null counts as absent.
func checkTypes(pod object) error {
	text, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	var found shape
	err = json.Unmarshal(text, &found)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s is of type %s: it must be %s", wrong.Field, wrong.Value, nameOfKind(wrong.Type.Kind()))
	}
	if err == nil && found.Spec == nil {
		err = errors.New("spec is missing")
	}
	return err
}

func nameOfKind(kind reflect.Kind) string {
	switch kind {
	case reflect.String:
		return "a string, in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	default:
		return "an object"
	}
}
