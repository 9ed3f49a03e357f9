package inject

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/internal/config"
)

// Pod returns the pod (or a workload's pod template) with the sidecar in it. It does not change the argument.
// Pod(Pod(p)) is Pod(p). The error joins all obstacles.
func Pod(pod map[string]any, o Options) (map[string]any, error) {
	if err := checkTypes(pod); err != nil {
		return nil, err
	}
	pod, _ = clone(pod).(object)
	spec, metadata := objectIn(pod, "spec"), objectIn(pod, "metadata")
	s, err := settingsOf(objectIn(metadata, "annotations"), onNode(objectIn(metadata, "labels"), o), o)
	if err := errors.Join(checkLabel(objectIn(metadata, "labels")), err); err != nil {
		return nil, err
	}
	if s.containers == nil {
		if s.containers, err = ownContainers(spec); err != nil {
			return nil, err
		}
		if len(s.containers) > 0 {
			annotate(pod, ContainersAnnotation, strings.Join(s.containers, ","))
		}
	}
	if err := checkSpec(spec, s); err != nil {
		return nil, err
	}
	switch {
	case s.node:
		addVolume(spec, nodeVolume())
	case ownSidecar(spec) != nil:
		addVolume(spec, socketVolume())
	default:
		addVolume(spec, socketVolume())
		addVolume(spec, storeVolume(s))
		hostNetwork, _ := spec["hostNetwork"].(bool)
		spec["initContainers"] = slices.Insert(listIn(spec, "initContainers"), 0, any(sidecar(s, o, hostNetwork)))
		annotate(pod, VersionAnnotation, Version())
	}
	for _, app := range apps(spec) {
		if s.wants(app.name()) {
			addSocket(app.object, s)
		}
	}
	return pod, nil
}

// checkLabel refuses values that probably mean another one, because a cluster's selectors would not match them.
func checkLabel(labels object) error {
	switch value, there := labels[Label]; {
	case !there, value == WithSidecar, value == WithNode, value == WithNothing:
		return nil
	default:
		return fmt.Errorf(`metadata.labels[%s] is %s: it must be "true", "node" or "false", in quotes`, Label, asJSON(value))
	}
}

// addSocket adds the mount and the variable to the container, unless they exist.
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

func annotate(pod object, name, value string) {
	in := pod
	for _, field := range []string{"metadata", "annotations"} {
		if objectIn(in, field) == nil {
			in[field] = object{}
		}
		in = objectIn(in, field)
	}
	in[name] = value
}

func addVolume(spec, volume object) {
	volumes := listIn(spec, "volumes")
	if named(volumes, nameOf(volume)) == nil {
		spec["volumes"] = append(volumes, volume)
	}
}

// isEmptyDir is also true of a volume without a source, because Kubernetes makes it an emptyDir.
func isEmptyDir(volume object) bool {
	for field, value := range volume {
		if field != "name" && field != "emptyDir" && value != nil {
			return false
		}
	}
	return true
}

// ownSidecar is the sidecar that the pod already has, or nil.
func ownSidecar(spec object) object { return named(listIn(spec, "initContainers"), ContainerName) }

func checkSpec(spec object, s settings) error {
	var errs []error
	if s.node {
		errs = append(errs, checkNodeSpec(spec))
	} else {
		errs = append(errs, checkSidecar(spec, s))
		if v := named(listIn(spec, "volumes"), SocketVolume); v != nil && !isEmptyDir(v) {
			errs = append(errs, fmt.Errorf("spec.volumes[%s] must be an emptyDir: a socket is for one pod", SocketVolume))
		}
	}
	if objectIn(spec, "os")["name"] == "windows" {
		errs = append(errs, errors.New("spec.os.name is windows: the sidecar runs on linux only"))
	}
	all := apps(spec)
	for _, name := range s.containers {
		if !slices.ContainsFunc(all, func(a app) bool { return a.name() == name }) {
			errs = append(errs, fmt.Errorf("annotation %s names the container %q, which the pod does not have; it has %s",
				ContainersAnnotation, name, namesOf(all)))
		}
	}
	for _, app := range all {
		if s.wants(app.name()) {
			errs = append(errs, checkMounts(app, s), checkVariable(app, s))
		}
	}
	return errors.Join(errs...)
}

// checkSidecar refuses a container that only has the sidecar's name, or a sidecar that the apps would not find.
func checkSidecar(spec object, s settings) error {
	if named(listIn(spec, "containers"), ContainerName) != nil {
		return fmt.Errorf("spec.containers[%s] is no native sidecar: move it to initContainers with restartPolicy: Always, "+
			"rename it, or remove the label %s", ContainerName, Label)
	}
	own := app{"spec.initContainers[" + ContainerName + "]", true, ownSidecar(spec)}
	if own.object == nil {
		return nil
	}
	var errs []error
	if own.object["restartPolicy"] != "Always" {
		errs = append(errs, fmt.Errorf("%s is no native sidecar: it needs restartPolicy: Always", own.path))
	}
	if named(listIn(own.object, "volumeMounts"), SocketVolume) == nil {
		errs = append(errs, fmt.Errorf("%s must mount the volume %s at %s, as the apps do", own.path, SocketVolume, s.folder()))
	}
	if s.socket != config.DefaultSocket && named(listIn(own.object, "env"), socketVariable) == nil {
		errs = append(errs, fmt.Errorf("%s must set %s to %s, as the annotation %s says", own.path, socketVariable, s.socket, SocketAnnotation))
	}
	return errors.Join(append(errs, checkMounts(own, s), checkVariable(own, s))...)
}

// checkMounts requires the socket's volume, and only it, in the socket's folder. Only the sidecar may write
// there, because otherwise one app could replace the socket for the others.
func checkMounts(a app, s settings) error {
	var errs []error
	for _, mount := range objectsIn(a.object, "volumeMounts") {
		ours := nameOf(mount) == SocketVolume
		where := textIn(mount, "mountPath")
		there := where == s.folder() || where == s.folder()+"/"
		readOnly, _ := mount["readOnly"].(bool)
		switch {
		case ours && !there:
			errs = append(errs, fmt.Errorf("%s mounts the volume %s at %s: the socket's folder is %s (the annotation %s changes it)",
				a.path, SocketVolume, where, s.folder(), SocketAnnotation))
		case there && !ours:
			errs = append(errs, fmt.Errorf("%s mounts the volume %s at %s, where the socket's folder is: mount it elsewhere, or change the folder with the annotation %s",
				a.path, nameOf(mount), where, SocketAnnotation))
		case ours && readOnly == (a.name() == ContainerName):
			errs = append(errs, fmt.Errorf("%s must mount the volume %s with readOnly: %t", a.path, SocketVolume, !readOnly))
		case ours && textIn(mount, "subPath")+textIn(mount, "subPathExpr") != "":
			errs = append(errs, fmt.Errorf("%s must mount the volume %s without subPath: the socket is not in a folder of it", a.path, SocketVolume))
		}
	}
	return errors.Join(errs...)
}

// checkVariable refuses a container that expects the socket elsewhere. Kubernetes uses the last value of a
// repeated variable, so all must be right.
func checkVariable(a app, s settings) error {
	for _, v := range objectsIn(a.object, "env") {
		if nameOf(v) != socketVariable || v["value"] == s.socket {
			continue
		}
		return fmt.Errorf("%s sets %s to %s: the socket is at %s (the annotation %s changes it)",
			a.path, socketVariable, shown(v), s.socket, SocketAnnotation)
	}
	return nil
}

func shown(variable object) string {
	if value, ok := variable["value"].(string); ok {
		return fmt.Sprintf("%q", value)
	}
	return "something from valueFrom"
}

func namesOf(all []app) string {
	var names []string
	for _, a := range all {
		names = append(names, a.name())
	}
	return strings.Join(names, ", ")
}
