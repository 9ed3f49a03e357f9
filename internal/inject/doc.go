// Package inject puts the sidecar into pods.
//
// Pod is one pure function from pod to pod, behind a stream of manifests (Documents) and a cluster's
// admission webhook (Webhook). The policy in deploy/injector/policy.yaml says the same in CEL, and
// test/k8s compares the two on a real API server.
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
// The pod's own containers are those in ContainersAnnotation. Without it they are all but native
// sidecars and what well-known injectors add (own.go). Pod then writes the annotation, so that later
// containers do not count.
//
// Rules: a pod that has its sidecar is left as it is, so injection may be repeated, and a manifest may
// bring its own sidecar, which must mount the socket's volume. Unknown fields are kept. The pod's own
// security context is never touched, least of all fsGroup: it changes the owner of the files in all
// volumes. If this cannot be done, an error names the field and what would be right: Pod never returns
// a pod without locks.
package inject
