// Package inject puts the sidecar into pods.
//
// Pod is one pure function from pod to pod; everything else is a way to it: a stream
// of manifests (Documents), and the admission webhook of a cluster (Webhook). The policy
// in deploy/injector/policy.yaml says the same in CEL, and test/k8s holds the two against
// each other on a real API server.
//
// A pod is opted in by the label locksidecar.dev/inject: "true", its own or its
// namespace's; its own "false" wins. Callers of Pod have decided that already. Annotations
// have what differs from pod to pod (settings.go).
//
// Pod adds:
//
//   - a native sidecar (KEP-753) named locksidecar, in front of all other init containers,
//     so that those have locks, too, and that it is the last to be stopped;
//   - an emptyDir in memory for the socket, which the pod's own containers mount read-only at
//     the same path, with LOCKSIDECAR_SOCKET;
//   - the Secret with the store's URL, mounted in the sidecar only.
//
// The pod's own containers are those that ContainersAnnotation names. Without it they are all but
// native sidecars and what well-known injectors add (own.go), and Pod writes the annotation, so
// that containers which come later do not count.
//
// Rules: a pod that has its sidecar is left as it is (so that injection may be repeated,
// and a manifest may bring a sidecar of its own, which then must mount the volume of the
// socket); what is not understood is kept; the pod's own security context is never touched,
// fsGroup least of all, because it changes who owns the files of all volumes. A pod for
// which this cannot be done is an error that names the field and what would be right, never
// a pod without locks.
package inject
