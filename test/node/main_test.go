// Package node runs the manifests of deploy/ on a real Kubernetes of one node: API server, kubelet,
// containerd, and images that are made here. Nothing is pulled.
//
// The node has mounts, a network and processes of its own, so that nothing of it stays when the tests
// end. Tests use:
//
//	kubectl(t, args...)      runs kubectl as the cluster's administrator
//	apply(t, ns, manifest)   applies a manifest, and deletes it after the test
//	namespace(t, name)       a namespace that has the Secret with the store's URL
//	holder(name, key)        a pod whose app holds a lock (see app/), with the sidecar of deploy/sidecar.yaml
//	logOf(t, ...)            follows a container's log
package node

import (
	"fmt"
	"os"
	"runtime"
	"testing"
)

// root is the repository's.
const root = "../.."

// the is the node that all tests use.
var the *machine

func TestMain(m *testing.M) {
	runtime.LockOSThread() // the node is killed when the thread that started it ends
	os.Exit(run(m))
}

func run(m *testing.M) int {
	booted, err := boot()
	if booted != nil {
		defer booted.stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the node does not start:", err)
		return 1
	}
	the = booted
	code := m.Run()
	if code != 0 {
		booted.keepLogs()
	}
	return code
}
