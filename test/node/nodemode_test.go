package node

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const servers = "locksidecar-node"

// nodeMode installs deploy/node.yaml as it is.
func nodeMode(t *testing.T) {
	t.Helper()
	apply(t, "", manifest(t, "node.yaml"))
	t.Cleanup(func() {
		kubectl(t, "delete", "csidriver", "csi.locksidecar.dev")
		// Their pods first: a namespace looks for what is left only after half of the longest grace period.
		kubectl(t, "-n", servers, "delete", "daemonset", "--all", "--cascade=foreground", "--timeout=120s")
		kubectl(t, "delete", "namespace", servers, "--timeout=120s")
	})
	kubectl(t, "-n", servers, "create", "secret", "generic", "locksidecar", "--from-literal=store-url="+storeURL)
	for _, set := range []string{"locksidecar-csi", "locksidecar-node"} {
		kubectl(t, "-n", servers, "rollout", "status", "daemonset/"+set, "--timeout=90s")
	}
}

// restricted makes a namespace with Pod Security "restricted", and without the store's URL.
func restricted(t *testing.T, name string) string {
	t.Helper()
	ns := namespace(t, name)
	kubectl(t, "-n", ns, "delete", "secret", "locksidecar")
	kubectl(t, "label", "namespace", ns, "pod-security.kubernetes.io/enforce=restricted", "locksidecar.dev/inject=node")
	return ns
}

// onNode starts a pod whose app holds a lock of its node's lock server. Injection adds the volume.
func onNode(t *testing.T, ns, name, what, key string) *log {
	t.Helper()
	pod := strings.Replace(holder(t, name, key, true), `locksidecar.dev/inject: "true"`, "locksidecar.dev/inject: node", 1)
	pod = strings.Replace(pod, "args: [hold,", "args: ["+what+",", 1)
	inject := exec.Command(abs(root+"/bin/locksidecar"), "inject", "-f", "-")
	inject.Stdin = strings.NewReader(pod)
	injected, err := inject.Output()
	if err != nil || strings.Contains(string(injected), "initContainers") {
		t.Fatalf("%v: %s", err, injected)
	}
	apply(t, ns, string(injected))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
	return logOf(t, ns, name, "app")
}

// update sets a variable of the lock server, and waits until the new one is ready, and the old one is being stopped. `kubectl rollout status` would wait for the
// old one's end.
func update(t *testing.T, variable string) {
	t.Helper()
	const form = `{range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status} {.metadata.deletionTimestamp}{"\n"}{end}`
	list := func() []string {
		return strings.Split(kubectl(t, "-n", servers, "get", "pods", "-l", "app=locksidecar-node", "-o", "jsonpath="+form), "\n")
	}
	before := strings.Join(list(), "\n")
	kubectl(t, "-n", servers, "set", "env", "daemonset/locksidecar-node", variable)
	if err := the.until("the new lock server", func() error {
		for _, line := range list() {
			pod := strings.Fields(line)
			switch {
			case len(pod) == 3: // it is being stopped
			case len(pod) != 2 || strings.Contains(before, pod[0]) || pod[1] != "True":
				return fmt.Errorf("%q", line)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// serversAre waits for the number of lock servers that run, the terminating ones, too.
func serversAre(t *testing.T, n int) {
	t.Helper()
	if err := the.until(fmt.Sprint(n, " lock servers"), func() error {
		out := kubectl(t, "-n", servers, "get", "pods", "-l", "app=locksidecar-node", "-o", "name")
		if got := len(strings.Fields(out)); got != n {
			return fmt.Errorf("%d: %s", got, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// counted waits for the next counts of a pool.
func (l *log) counted() (held, lost int) {
	l.t.Helper()
	found := regexp.MustCompile(`held (\d+), retried \d+, lost (\d+)`).FindStringSubmatch(l.next("held ").text)
	if found == nil {
		l.t.Fatal("no counts")
	}
	held, _ = strconv.Atoi(found[1])
	lost, _ = strconv.Atoi(found[2])
	return held, lost
}

// The pods of a node share its lock server: each has its own namespace's locks, which end with the app, and with the pod.
func TestNodeMode(t *testing.T) {
	nodeMode(t)
	shop, pay := restricted(t, "node-shop"), restricted(t, "node-pay")
	first := onNode(t, shop, "first", "hold", "job")
	first.next("granted")
	onNode(t, pay, "other", "hold", "job").next("granted") // another namespace, another lock
	second := onNode(t, shop, "second", "hold", "job")
	third := onNode(t, shop, "third", "hold", "job")

	killed := time.Now()
	signal(t, processOf(t, "app", "HOSTNAME=first"), syscall.SIGKILL)
	granted := second.next("granted")
	t.Logf("granted %s after kill -9 of the app", granted.at.Sub(killed).Round(time.Millisecond))
	if granted.at.Sub(killed) > 5*time.Second {
		t.Error("the lock of a killed app was not free at once")
	}

	deleted := time.Now()
	kubectl(t, "-n", shop, "delete", "pod", "second", "--grace-period=0", "--force")
	next := third.next("granted")
	t.Logf("granted %s after the pod was deleted", next.at.Sub(deleted).Round(time.Millisecond))
	if err := the.until("the folder of the deleted pod to go", func() error {
		out, err := the.inside("sh", "-c", "ls /run/locksidecar-node/pods | wc -l").Output()
		if err == nil && strings.TrimSpace(string(out)) != "3" {
			err = fmt.Errorf("%s folders", out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}

	// A pod that is deleted as usual holds its lock until its app ends.
	kubectl(t, "-n", shop, "delete", "pod", "third")
	third.next("still held")

	// Without readOnly, the pod does not start, and its events say why.
	bad := strings.Replace(holder(t, "writable", "x", true), "spec:\n", "spec:\n  volumes: [{ name: v, csi: { driver: csi.locksidecar.dev } }]\n", 1)
	bad = strings.Replace(strings.Replace(bad, `inject: "true"`, `inject: "false"`, 1), "seccompProfile: { type: RuntimeDefault }", "seccompProfile: { type: RuntimeDefault }\n      volumeMounts: [{ name: v, mountPath: /v }]", 1)
	apply(t, shop, bad)
	if err := the.until("the event of a writable volume", func() error {
		if events := kubectl(t, "-n", shop, "get", "events", "--field-selector", "involvedObject.name=writable"); !strings.Contains(events, "must have readOnly: true") {
			return fmt.Errorf("%s", events)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// The lock server is updated under load: a lock that is held stays, and a pool of connections on one session loses none. Then the old server ends.
func TestNodeUpdate(t *testing.T) {
	nodeMode(t)
	ns := restricted(t, "node-update")
	holds := onNode(t, ns, "holds", "hold", "leader")
	holds.next("granted")
	load := onNode(t, ns, "load", "pool", "load")
	before, _ := load.counted()
	update(t, "ROUND=1")
	serversAre(t, 2)
	after, lost := load.counted()
	for after < before+100 {
		after, lost = load.counted()
	}
	t.Logf("the pool held %d locks during the update, and lost %d", after-before, lost)
	if lost > 0 {
		t.Errorf("%d locks were lost", lost)
	}
	// The first server serves the holder's connection.
	select {
	case line := <-holds.lines:
		t.Errorf("the holder says: %s", line.text)
	default:
	}
	next := onNode(t, ns, "next", "hold", "leader")
	kubectl(t, "-n", ns, "delete", "pod", "holds")
	holds.next("still held")
	next.next("granted")
	endsWithoutLoss(t, ns, "load", load)
	serversAre(t, 1)

	// With a short drain timeout the pool must move to the new server.
	kubectl(t, "-n", ns, "delete", "pod", "next")
	update(t, "LOCKSIDECAR_DRAIN_TIMEOUT=10s")
	serversAre(t, 1)
	moves := onNode(t, ns, "moves", "pool", "moves")
	moves.next("session")
	update(t, "ROUND=last")
	moves.next("session") // another one
	serversAre(t, 1)
	moves.counted()
	endsWithoutLoss(t, ns, "moves", moves)
}

// endsWithoutLoss deletes the pod of a pool.
func endsWithoutLoss(t *testing.T, ns, name string, pool *log) {
	t.Helper()
	kubectl(t, "-n", ns, "delete", "pod", name)
	ended := pool.next("ended: ")
	t.Log(name, ended.text)
	if !strings.Contains(ended.text, "lost 0") {
		t.Error("a lock was lost")
	}
}

// kill -9 of the lock server ends the locks of the node's pods, and each app learns of it. The plugin and the kubelet may be killed, and the plugin's pod deleted: pods go on.
func TestNodeModeKills(t *testing.T) {
	nodeMode(t)
	ns := restricted(t, "node-kills")
	one := onNode(t, ns, "one", "hold", "one")
	one.next("granted")

	server := kubectl(t, "-n", servers, "get", "pods", "-l", "app=locksidecar-node", "-o", "jsonpath={.items[0].metadata.name}")
	signal(t, processOf(t, "locksidecar", "POD_NAME="+server), syscall.SIGKILL)
	killed := time.Now()
	one.next("lost")
	again := one.next("granted")
	t.Logf("granted again %s after kill -9 of the lock server", again.at.Sub(killed).Round(time.Millisecond))

	plugin := kubectl(t, "-n", servers, "get", "pods", "-l", "app=locksidecar-csi", "-o", "jsonpath={.items[0].metadata.name}")
	signal(t, processOf(t, "locksidecar", "HOSTNAME="+plugin), syscall.SIGKILL)
	onNode(t, ns, "one-more", "hold", "one-more").next("granted")
	kubectl(t, "-n", servers, "delete", "pod", "-l", "app=locksidecar-csi", "--grace-period=0", "--force")
	onNode(t, ns, "two", "hold", "two").next("granted")

	_ = the.inside("pkill", "-KILL", "-f", "^"+the.kube+" kubelet ").Run()
	the.startKubelet()
	onNode(t, ns, "three", "hold", "three").next("granted")
	one = logOf(t, ns, "one", "app") // the kubelet has ended the log before
	one.next("lost")
	one.next("granted")
	// Up to here the app has lost its lock once.

	// Everybody's first remedy is as an update: the DaemonSet makes the next server at once, and the deleted one serves the held locks.
	kubectl(t, "-n", servers, "delete", "pod", "-l", "app=locksidecar-node", "--wait=false")
	serversAre(t, 2)
	onNode(t, ns, "four", "hold", "four").next("granted")
	select {
	case line := <-one.lines:
		t.Errorf("the first app says: %s", line.text)
	default:
	}

	// The node is drained, and its pods end.
	kubectl(t, "drain", "node1", "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=120s", "--pod-selector=locksidecar.dev/inject=node")
	one.next("still held")
	serversAre(t, 1)
	kubectl(t, "uncordon", "node1")
}

// The chart installs the lock servers beside the injector, which adds the volume to pods of a namespace with the label.
func TestNodeChart(t *testing.T) {
	helm := func(args ...string) {
		t.Helper()
		args = append([]string{"env", "KUBECONFIG=/run/kube/admin.kubeconfig", "HOME=/run/kube", os.Getenv("HELM")}, args...)
		if out, err := the.inside(append(args, "--namespace", "node-chart", "--wait", "--timeout", "2m")...).CombinedOutput(); err != nil {
			t.Fatalf("helm %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	t.Cleanup(func() { kubectl(t, "delete", "namespace", "node-chart", "--timeout=90s") })
	helm("install", "locksidecar", abs(root+"/deploy/chart"), "--create-namespace", "--set", "mode=node,database.storeURL="+storeURL+",node.policy.namespaces.node-app-canary=node-app")
	app, canary := restricted(t, "node-app"), restricted(t, "node-app-canary")
	for _, ns := range []string{app, canary} {
		pod := strings.Replace(holder(t, "web", "job", true), "  labels: { locksidecar.dev/inject: \"true\" }\n", "", 1)
		apply(t, ns, pod)
		kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
	}
	logOf(t, app, "web", "app").next("granted")
	second := logOf(t, canary, "web", "app")
	kubectl(t, "-n", app, "delete", "pod", "web")
	second.next("granted")
	kubectl(t, "-n", canary, "delete", "pod", "web")
	helm("uninstall", "locksidecar")
}
