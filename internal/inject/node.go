package inject

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/locksidecar/locksidecar/internal/config"
)

// nodeDriver is the volume plugin `locksidecar csi`. It is package csi's name, which runs on Linux only.
const nodeDriver = "csi.locksidecar.dev"

// nodeAnnotations are those that count without a sidecar.
var nodeAnnotations = []string{ContainersAnnotation, SocketAnnotation}

// onNode reports whether the pod gets its socket from its node's lock server.
func onNode(labels object, o Options) bool {
	value, own := labels[Label]
	return value == WithNode || !own && o.Node
}

// nodeVolume is the volume with the socket. The plugin refuses one that is writable.
func nodeVolume() object {
	return object{"name": SocketVolume, "csi": object{"driver": nodeDriver, "readOnly": true}}
}

func isNodeVolume(volume object) bool {
	csi := objectIn(volume, "csi")
	readOnly, _ := csi["readOnly"].(bool)
	return csi["driver"] == nodeDriver && readOnly
}

// checkNodeAnnotations refuses the annotations of a sidecar, which would have no effect.
func checkNodeAnnotations(annotations map[string]any) error {
	var errs []error
	for _, name := range annotationNames {
		if _, there := annotations[name]; there && !slices.Contains(nodeAnnotations, name) {
			errs = append(errs, fmt.Errorf("annotation %s is for a sidecar, and this pod has the lock server of its node (%s: %s): remove it", name, Label, WithNode))
		}
	}
	if socket, ok := annotations[SocketAnnotation].(string); ok && path.Base(socket) != path.Base(config.DefaultSocket) {
		errs = append(errs, fmt.Errorf("annotation %s is %q: the lock server of the node names the file %s", SocketAnnotation, socket, path.Base(config.DefaultSocket)))
	}
	return errors.Join(errs...)
}

// checkNodeSpec refuses what is a sidecar's.
func checkNodeSpec(spec object) error {
	var errs []error
	for _, field := range []string{"initContainers", "containers"} {
		if named(listIn(spec, field), ContainerName) != nil {
			errs = append(errs, fmt.Errorf(`spec.%s[%s] is a sidecar, and the pod asks for the lock server of its node: remove the container, or set the label %s to "true"`, field, ContainerName, Label))
		}
	}
	if v := named(listIn(spec, "volumes"), SocketVolume); v != nil && !isNodeVolume(v) {
		errs = append(errs, fmt.Errorf("spec.volumes[%s] must be csi: {driver: %s, readOnly: true}", SocketVolume, nodeDriver))
	}
	return errors.Join(errs...)
}
