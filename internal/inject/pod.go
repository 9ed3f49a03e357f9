package inject

import (
	"errors"
	"fmt"
	"slices"
)

// Pod returns the pod (or a workload's pod template: what has metadata and spec) with the
// sidecar in it. The argument stays as it is. Pod(Pod(p)) is Pod(p). The error joins all
// that stands in the way.
func Pod(pod map[string]any, o Options) (map[string]any, error) {
	pod, _ = clone(pod).(object)
	spec := objectIn(pod, "spec")
	if spec == nil {
		return nil, errors.New("there is no spec")
	}
	s, err := settingsOf(objectIn(objectIn(pod, "metadata"), "annotations"), o)
	if err != nil {
		return nil, err
	}
	present, err := hasSidecar(spec)
	if err := errors.Join(err, checkSpec(spec, s)); err != nil {
		return nil, err
	}
	addVolume(spec, socketVolume())
	if !present {
		addVolume(spec, storeVolume(s))
		hostNetwork, _ := spec["hostNetwork"].(bool)
		spec["initContainers"] = slices.Insert(listIn(spec, "initContainers"), 0, any(sidecar(s, o, hostNetwork)))
	}
	for _, container := range apps(spec) {
		if s.wants(nameOf(container)) {
			addSocket(container, s)
		}
	}
	return pod, nil
}

// addSocket gives the container the mount and the variable, unless it has them.
func addSocket(container object, s settings) {
	mounts := listIn(container, "volumeMounts")
	if named(mounts, SocketVolume) == nil {
		container["volumeMounts"] = append(mounts, object{"name": SocketVolume, "mountPath": s.folder(), "readOnly": true})
	}
	env := listIn(container, "env")
	if named(env, socketVariable) == nil {
		container["env"] = append(env, variable(socketVariable, s.socket))
	}
}

func addVolume(spec, volume object) {
	volumes := listIn(spec, "volumes")
	if named(volumes, nameOf(volume)) == nil {
		spec["volumes"] = append(volumes, volume)
	}
}

// hasSidecar says whether the pod has its sidecar. The error says that the name is taken by
// something else.
func hasSidecar(spec object) (bool, error) {
	if named(listIn(spec, "containers"), ContainerName) != nil {
		return false, fmt.Errorf("container %q is no native sidecar: move it to initContainers with restartPolicy: Always, "+
			"rename it, or remove the label %s", ContainerName, Label)
	}
	container := named(listIn(spec, "initContainers"), ContainerName)
	if container == nil {
		return false, nil
	}
	if container["restartPolicy"] != "Always" {
		return false, fmt.Errorf("init container %q is no native sidecar: it needs restartPolicy: Always", ContainerName)
	}
	return true, nil
}

// checkSpec looks for what the pod has in the places that the sidecar needs.
func checkSpec(spec object, s settings) error {
	var errs []error
	if objectIn(spec, "os")["name"] == "windows" {
		errs = append(errs, errors.New("spec.os.name is windows: there is no sidecar for it"))
	}
	if v := named(listIn(spec, "volumes"), SocketVolume); v != nil && v["emptyDir"] == nil {
		errs = append(errs, fmt.Errorf("volume %q must be an emptyDir: a socket is for one pod", SocketVolume))
	}
	all := apps(spec)
	for _, name := range s.containers {
		if named(anyList(all), name) == nil {
			errs = append(errs, fmt.Errorf("annotation %s names %q, which the pod does not have", ContainersAnnotation, name))
		}
	}
	for _, container := range all {
		if s.wants(nameOf(container)) {
			errs = append(errs, checkContainer(container, s))
		}
	}
	if own := named(listIn(spec, "initContainers"), ContainerName); own != nil {
		errs = append(errs, checkVariable(own, s))
	}
	return errors.Join(errs...)
}

func checkContainer(container object, s settings) error {
	errs := []error{checkVariable(container, s)}
	for _, mount := range objectsIn(container, "volumeMounts") {
		ours := nameOf(mount) == SocketVolume
		there := mount["mountPath"] == s.folder()
		if ours != there {
			errs = append(errs, fmt.Errorf("container %q mounts volume %q at %v: the socket's folder is %s (annotation %s changes it)",
				nameOf(container), nameOf(mount), mount["mountPath"], s.folder(), SocketAnnotation))
		}
	}
	return errors.Join(errs...)
}

// checkVariable refuses a container that looks for the socket elsewhere.
func checkVariable(container object, s settings) error {
	v := named(listIn(container, "env"), socketVariable)
	if v == nil || v["value"] == s.socket {
		return nil
	}
	return fmt.Errorf("container %q sets %s to %v: the socket is at %s (annotation %s changes it)",
		nameOf(container), socketVariable, v["value"], s.socket, SocketAnnotation)
}
