// Package inject puts the sidecar into pods.
//
// Pod is one pure function from pod to pod. Documents applies it to a stream of manifests, and Webhook to a
// cluster's admission reviews. The policy in deploy/injector/policy.yaml does the same in CEL, and test/k8s
// compares both on a real API server.
//
// The label locksidecar.dev/inject: "true" opts a pod in, on the pod or its namespace. A "false" on the pod
// wins. Callers of Pod have already decided that. Annotations contain the settings of a pod (settings.go).
//
// Pod adds:
//
//   - a native sidecar (KEP-753) named locksidecar, before all other init containers, so that they can use
//     locks and the sidecar is stopped last;
//   - an emptyDir in memory for the socket, which the pod's own containers mount read-only at the same path,
//     and the variable LOCKSIDECAR_SOCKET;
//   - the Secret with the store's URL, mounted only in the sidecar;
//   - VersionAnnotation, by which Stale finds the pods that an older release injected.
//
// ContainersAnnotation names the pod's own containers. Without it these are all except native sidecars and
// those of well-known injectors (own.go). Pod then writes the annotation, so that containers of a later
// injector do not get the socket.
//
// Rules: a pod that already has its sidecar does not change, so injection may be repeated. A manifest may contain
// its own sidecar, which must mount the socket's volume. Unknown fields are kept. The pod's own security context
// never changes, in particular not fsGroup, because it changes the owner of the files in all volumes. If injection
// is impossible, an error names the field and the rule. Pod never returns a pod without locks.
package inject
