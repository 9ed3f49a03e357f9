package inject

import (
	"fmt"
	"strconv"

	"github.com/locksidecar/locksidecar/internal/config"
)

// Names in the pod are stable: a manifest's container or volume with this name replaces the injected one.
const (
	// ContainerName is the sidecar's.
	ContainerName = "locksidecar"
	// SocketVolume is the emptyDir with the socket.
	SocketVolume = "locksidecar-socket"
	// StoreVolume is the Secret with the store's URL.
	StoreVolume = "locksidecar-store"
	// StoreKey is the key in the Secret.
	StoreKey = "store-url"
	// AdminPort serves /metrics and health of an injected sidecar. It is an unusual port, because it is taken in
	// the pod's network before the app starts.
	AdminPort = 15624
)

const (
	socketVariable = config.Prefix + "SOCKET"
	ttlVariable    = config.Prefix + "TTL"
)

// ownVariables are those that Options.Env cannot set: the sidecar's own, and STORE_URL, which excludes the file.
func ownVariables() []string {
	names := []string{config.Prefix + "STORE_URL"}
	for _, v := range objectsIn(sidecar(settings{ttl: "15s"}, Options{}, false), "env") {
		names = append(names, nameOf(v))
	}
	return names
}

// sidecar is the container. With hostNetwork it has no admin listener, because a node's pods would conflict on
// its port. Metrics are sent over OTLP there.
func sidecar(s settings, o Options, hostNetwork bool) object {
	env := list{
		fromField("POD_NAME", "metadata.name"),
		fromField("POD_NAMESPACE", "metadata.namespace"),
		fromField("POD_UID", "metadata.uid"),
		fromField("NODE_NAME", "spec.nodeName"),
		variable(socketVariable, s.socket),
		// The mount is the permission, because apps run as any user and have no common group with the sidecar.
		variable(config.Prefix+"SOCKET_MODE", "0666"),
		variable(config.Prefix+"STORE_URL_FILE", storeFolder+"/"+StoreKey),
		variable(config.Prefix+"NAMESPACE", s.namespace),
	}
	if !hostNetwork {
		env = append(env, variable(config.Prefix+"ADMIN_ADDR", ":"+strconv.Itoa(AdminPort)))
	}
	if s.ttl != "" {
		env = append(env, variable(ttlVariable, s.ttl))
	}
	env = append(env,
		variable("GOMEMLIMIT", fmt.Sprintf("%dMiB", s.mebibytes()*25/32)), // the garbage collector works harder before the limit kills the process
		variable("OTEL_RESOURCE_ATTRIBUTES", "k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME),"+
			"k8s.pod.uid=$(POD_UID),k8s.node.name=$(NODE_NAME),k8s.container.name="+ContainerName))
	for _, v := range furtherVariables(s, o) {
		env = append(env, variable(v.Name, v.Value))
	}
	security := object{
		"allowPrivilegeEscalation": false,
		"capabilities":             object{"drop": list{"ALL"}},
		"readOnlyRootFilesystem":   true,
		"runAsNonRoot":             true,
		"seccompProfile":           object{"type": "RuntimeDefault"},
	}
	if o.User != 0 {
		security["runAsUser"], security["runAsGroup"] = o.User, o.User
	}
	container := object{
		"name":          ContainerName,
		"image":         s.image,
		"args":          list{"serve"},
		"restartPolicy": "Always",
		"env":           env,
		// The probe waits for the socket, not for the store. An app may start without the database, and then gets
		// errors.
		"startupProbe": object{
			"exec":          object{"command": list{"/locksidecar", "health"}},
			"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 60,
		},
		"resources":                resources(s),
		"securityContext":          security,
		"terminationMessagePolicy": "FallbackToLogsOnError",
		"volumeMounts": list{
			object{"name": SocketVolume, "mountPath": s.folder()},
			object{"name": StoreVolume, "mountPath": storeFolder, "readOnly": true},
		},
	}
	if s.pullPolicy != "" {
		container["imagePullPolicy"] = s.pullPolicy
	}
	if !hostNetwork {
		container["ports"] = list{object{"name": ContainerName, "containerPort": AdminPort, "protocol": "TCP"}}
	}
	return container
}

// resources has no limit of processor time unless the pod asks for one, because a throttled sidecar renews late and loses locks.
func resources(s settings) object {
	requests := object{"cpu": s.cpu, "memory": fmt.Sprintf("%dMi", s.mebibytes()/4)}
	limits := object{"memory": s.memory}
	if s.cpuLimit != "" {
		limits["cpu"] = s.cpuLimit
	}
	if s.storage != "" {
		requests["ephemeral-storage"] = s.storage
	}
	if s.storageLimit != "" {
		limits["ephemeral-storage"] = s.storageLimit
	}
	return object{"requests": requests, "limits": limits}
}

func socketVolume() object {
	return object{"name": SocketVolume, "emptyDir": object{"medium": "Memory", "sizeLimit": "1Mi"}}
}

// storeVolume is readable by all users, but mounted only in the sidecar. The sidecar's user does not own the files,
// and injection must not set the pod's fsGroup. It contains the whole Secret, so a CA's file can be beside the URL.
func storeVolume(s settings) object {
	return object{"name": StoreVolume, "secret": object{
		"secretName":  s.secret,
		"defaultMode": 0o444,
	}}
}

func variable(name, value string) object { return object{"name": name, "value": value} }

func fromField(name, path string) object {
	return object{"name": name, "valueFrom": object{"fieldRef": object{"fieldPath": path}}}
}
