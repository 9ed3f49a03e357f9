package inject

import (
	"bytes"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Documents injects a stream of YAML documents, or JSON: pods and workloads that are
// opted in; everything else goes through as it is.
func Documents(stream []byte, o Options) ([]byte, error) {
	var out [][]byte
	for _, document := range bytes.Split(stream, []byte("\n---\n")) {
		injected, err := documentOf(document, o)
		if err != nil {
			return nil, err
		}
		out = append(out, injected)
	}
	return bytes.Join(out, []byte("\n---\n")), nil
}

func documentOf(document []byte, o Options) ([]byte, error) {
	asJSON, err := yaml.YAMLToJSON(document)
	if err != nil {
		return nil, err
	}
	var value object
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	pod, set := value, func(pod object) { value = pod }
	switch value["kind"] {
	case "Pod":
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job":
		spec := objectIn(value, "spec")
		pod, set = objectIn(spec, "template"), func(pod object) { spec["template"] = pod }
	default:
		return document, nil
	}
	if objectIn(objectIn(pod, "metadata"), "labels")[Label] != "true" {
		return document, nil
	}
	injected, err := Pod(pod, o)
	if err != nil {
		return nil, fmt.Errorf("%v %v: %w", value["kind"], objectIn(value, "metadata")["name"], err)
	}
	set(injected)
	return yaml.Marshal(value)
}
