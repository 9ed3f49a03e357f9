package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// deploy/sidecar.yaml works as it is: the Deployment is available, and the Job completes, after which
// its sidecar is stopped.
func TestManifest(t *testing.T) {
	ns := namespace(t, "manifest")
	apply(t, ns, manifest(t, "sidecar.yaml"))
	kubectl(t, "-n", ns, "wait", "--for=condition=Available", "deploy/app", "--timeout=60s")
	kubectl(t, "-n", ns, "wait", "--for=condition=Complete", "job/report", "--timeout=60s")

	kubectl(t, "-n", ns, "exec", "deploy/app", "-c", "locksidecar", "--", "/locksidecar", "acquire", "demo", "--ttl", "30s")
	if list := kubectl(t, "-n", ns, "exec", "deploy/app", "-c", "locksidecar", "--", "/locksidecar", "ls"); !strings.Contains(list, "demo") {
		t.Errorf("ls: %s", list)
	}
	if log := kubectl(t, "-n", ns, "logs", "job/report", "-c", "report"); !strings.Contains(log, "report:nightly") {
		t.Errorf("the job did not hold its lock: %s", log)
	}
	name := kubectl(t, "-n", ns, "get", "pod", "-l", "app=report", "-o", "jsonpath={.items[0].metadata.name}")
	p := readPod(t, ns, name)
	sidecar, job := p.sidecar().State.Terminated, p.app().State.Terminated
	if sidecar.FinishedAt.Before(job.FinishedAt) || sidecar.ExitCode != 0 {
		t.Errorf("the sidecar ended at %s with %d, the job at %s", sidecar.FinishedAt, sidecar.ExitCode, job.FinishedAt)
	}
}

// The app starts when the sidecar answers, so its first call is granted. It is stopped before the
// sidecar, so it holds its lock until it ends. Then the next pod has it.
func TestOrderOfStartAndStop(t *testing.T) {
	ns := namespace(t, "order")
	apply(t, ns, holder(t, "first", "order", false))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
	app, sidecar := logOf(t, ns, "first", "app"), logOf(t, ns, "first", "locksidecar")
	if first := <-app.lines; !strings.Contains(first.text, " granted ") {
		t.Errorf("the app's first line: %s", first.text)
	}
	apply(t, ns, holder(t, "second", "order", false))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/second", "--timeout=60s")
	next := logOf(t, ns, "second", "app")

	kubectl(t, "-n", ns, "delete", "pod", "first", "--wait=false")
	app.next("stopping")
	app.next("still held")
	ended := app.next("ended")
	if stopping := sidecar.next("stopping"); stopping.at.Before(ended.at) {
		t.Errorf("the sidecar was stopped at %s, the app ended at %s", stopping.at, ended.at)
	}
	if granted := next.next("granted"); granted.at.Before(ended.at.Add(-100 * time.Millisecond)) {
		t.Errorf("the next pod was granted the lock at %s, the app ended at %s", granted.at, ended.at)
	}
}

// The lock of a killed app is free at once, not after the TTL of 15 s.
func TestKilledApp(t *testing.T) {
	ns := namespace(t, "killed-app")
	for _, name := range []string{"first", "second"} {
		apply(t, ns, holder(t, name, "killed", false))
		kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
	}
	logOf(t, ns, "first", "app").next("granted")
	second := logOf(t, ns, "second", "app")
	killed := time.Now()
	signal(t, processOf(t, "app", "HOSTNAME=first"), syscall.SIGKILL)
	if after := second.next("granted").at.Sub(killed); after > 5*time.Second {
		t.Errorf("the next pod was granted the lock after %s", after)
	} else {
		t.Logf("granted %s after kill -9 of the app", after.Round(time.Millisecond))
	}
	if p := readPod(t, ns, "first"); p.sidecar().RestartCount != 0 {
		t.Errorf("the sidecar was restarted %d times", p.sidecar().RestartCount)
	}
}

// A killed sidecar is started again beside its app, which is not restarted. The app learns that its
// lock is lost, and gets it again.
func TestKilledSidecar(t *testing.T) {
	ns := namespace(t, "killed-sidecar")
	apply(t, ns, holder(t, "only", "killed", false))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/only", "--timeout=60s")
	app := logOf(t, ns, "only", "app")
	app.next("granted")
	signal(t, processOf(t, "locksidecar", "POD_NAME=only"), syscall.SIGKILL)
	app.next("lost")
	app.next("granted")
	kubectl(t, "-n", ns, "wait", "--for=jsonpath={.status.initContainerStatuses[0].restartCount}=1", "pod/only", "--timeout=30s")
	p := readPod(t, ns, "only")
	if p.app().RestartCount != 0 {
		t.Errorf("the app was restarted %d times", p.app().RestartCount)
	}
}

// The webhook adds the sidecar to a pod that asks for it: as deploy/injector/ says to install it, with the Job for its certificate.
func TestInjection(t *testing.T) {
	apply(t, "", manifest(t, "injector/webhook.yaml"))
	apply(t, "", manifest(t, "injector/certificate-job.yaml"))
	t.Cleanup(func() {
		kubectl(t, "delete", "mutatingwebhookconfiguration", "0-locksidecar-injector")
		kubectl(t, "delete", "clusterrole,clusterrolebinding", "locksidecar-injector-certificate")
		kubectl(t, "delete", "namespace", "locksidecar", "--timeout=90s")
	})
	kubectl(t, "-n", "locksidecar", "wait", "--for=condition=Available", "deploy/locksidecar-injector", "--timeout=90s")
	kubectl(t, "-n", "locksidecar", "wait", "--for=condition=Complete", "job/locksidecar-injector-certificate", "--timeout=90s")
	getsSidecar(t, "injected")
}

// The chart installs the webhook with its certificate. Before that, its Job migrates the database. An upgrade keeps
// what the certificate's Job has written, and an uninstallation takes the webhook away.
func TestChart(t *testing.T) {
	helm := func(args ...string) {
		t.Helper()
		args = append([]string{"env", "KUBECONFIG=/run/kube/admin.kubeconfig", "HOME=/run/kube", os.Getenv("HELM")}, args...)
		if out, err := the.inside(append(args, "--namespace", "locks", "--wait", "--timeout", "2m")...).CombinedOutput(); err != nil {
			t.Fatalf("helm %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	t.Cleanup(func() { kubectl(t, "delete", "namespace", "locks", "--timeout=90s") })
	chart := abs(root + "/deploy/chart")
	helm("install", "locksidecar", chart, "--create-namespace", "--set", "migration.enabled=true,migration.storeURL="+storeURL)
	if left := kubectl(t, "-n", "locks", "get", "job,secret", "-o", "name"); strings.Contains(left, "migrate") || !strings.Contains(left, "secret/locksidecar-injector-ca") {
		t.Errorf("the migration leaves its objects, or the certificate has no CA: %s", left)
	}
	getsSidecar(t, "from-chart")
	isFresh(t)
	injector := strings.Fields(kubectl(t, "-n", "locks", "get", "pod", "-l", "app.kubernetes.io/name=locksidecar-injector", "-o", "jsonpath={.items[*].metadata.name}"))
	reviews := ""
	for _, pod := range injector {
		reviews += kubectl(t, "get", "--raw", "/api/v1/namespaces/locks/pods/"+pod+":15624/proxy/metrics")
	}
	if !strings.Contains(reviews, `locksidecar_injector_reviews_total{outcome="injected"} 1`) || !strings.Contains(reviews, "certificate_not_after_timestamp_seconds 1.") {
		t.Errorf("the injector's metrics:\n%s", reviews)
	}
	helm("upgrade", "locksidecar", chart, "--set", "injector.replicas=3,injector.env.OTEL_SERVICE_NAME=shop,uid=0")
	if args := kubectl(t, "-n", "locks", "get", "deploy", "locksidecar-injector", "-o", "jsonpath={.spec.replicas}{.spec.template.spec.containers[0].args}"); !strings.HasPrefix(args, "3[") || !strings.Contains(args, "--env=OTEL_SERVICE_NAME=shop") {
		t.Errorf("the upgrade left %s", args)
	}
	getsSidecar(t, "after-upgrade")
	helm("uninstall", "locksidecar")
	if left := kubectl(t, "get", "mutatingwebhookconfiguration,validatingadmissionpolicy", "-o", "name"); strings.Contains(left, "locksidecar") {
		t.Errorf("left: %s", left)
	}
}

// TestChartReadme runs the commands of the chart's README, but for those that make and push the image: the node has it, under the name of the manifests.
func TestChartReadme(t *testing.T) {
	t.Cleanup(func() {
		_ = the.inside("env", "KUBECONFIG=/run/kube/admin.kubeconfig", "HOME=/run/kube", os.Getenv("HELM"), "uninstall", "locksidecar", "--namespace", "locksidecar").Run()
		kubectl(t, "delete", "namespace", "locksidecar", "--timeout=90s")
	})
	ran := 0
	blocks := strings.Split(manifest(t, "chart/README.md"), "```sh\n")[1:]
	for _, block := range blocks {
		commands, _, _ := strings.Cut(block, "```")
		for line := range strings.Lines(commands) {
			command, _, _ := strings.Cut(strings.TrimSpace(line), "   #")
			command = strings.NewReplacer("registry.example.com/locksidecar", "ghcr.io/locksidecar/locksidecar", "deploy/chart", abs(root+"/deploy/chart")).Replace(command)
			words := strings.Fields(command)
			var cmd *exec.Cmd
			switch words[0] {
			case "make":
				continue
			case "helm":
				cmd = the.inside(append([]string{"env", "KUBECONFIG=/run/kube/admin.kubeconfig", "HOME=/run/kube", os.Getenv("HELM")}, words[1:]...)...)
			case "kubectl":
				cmd = the.kubectl(words[1:]...)
			default:
				t.Fatalf("what is %s?", words[0])
			}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v: %s", command, err, out)
			}
			if strings.HasSuffix(command, "/locksidecar ls") && !strings.Contains(string(out), "demo") {
				t.Errorf("%s: %s", command, out)
			}
			ran++
		}
	}
	if ran != 10 {
		t.Errorf("ran %d commands", ran)
	}
}

// isFresh: no running sidecar is older than the binary, which asks the API server.
func isFresh(t *testing.T) {
	t.Helper()
	out, err := the.inside(abs(root+"/bin/locksidecar"), "inject", "--stale", "--kubeconfig", "/run/kube/admin.kubeconfig").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "locksidecar: 0 of ") || strings.Contains(string(out), " 0 of 0 ") {
		t.Errorf("%v: %s", err, out)
	}
}

// The cluster assigns the user, as OpenShift does: all containers of a namespace run as one number that no image knows, in the group 0 and with an
// fsGroup. The sidecar, injected with --uid 0, serves the app, and an app of another user by its group alone.
func TestAssignedUser(t *testing.T) {
	ns := namespace(t, "assigned")
	kubectl(t, "label", "namespace", ns, "pod-security.kubernetes.io/enforce=restricted")
	for _, c := range []struct{ name, mode, app, user string }{
		{"same", "0666", "", "1000690000"},
		{"other", "0660", "        runAsUser: 10001\n", "10001"},
	} {
		pod := strings.Replace(holder(t, c.name, c.name, true), "        runAsUser: 10001\n", c.app, 1)
		pod = strings.Replace(pod, "spec:\n", "spec:\n  securityContext: { runAsUser: 1000690000, fsGroup: 1000690000 }\n", 1)
		inject := exec.Command(abs(root+"/bin/locksidecar"), "inject", "--uid", "0", "-f", "-")
		inject.Stdin = strings.NewReader(pod)
		injected, err := inject.Output()
		if err != nil || !strings.Contains(string(injected), `"0666"`) {
			t.Fatalf("%v: %s", err, injected)
		}
		apply(t, ns, strings.Replace(string(injected), `"0666"`, `"`+c.mode+`"`, 1))
		kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/"+c.name, "--timeout=60s")
		logOf(t, ns, c.name, "app").next("granted")
		for _, process := range [][3]string{{"locksidecar", "POD_NAME=" + c.name, "1000690000"}, {"app", "HOSTNAME=" + c.name, c.user}} {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", processOf(t, process[0], process[1])))
			if err != nil || !strings.Contains(string(status), "\nUid:\t"+process[2]+"\t") || !strings.Contains(string(status), "\nGid:\t0\t") {
				t.Errorf("%s of %s: %v\n%s", process[0], c.name, err, status)
			}
		}
	}
}

// getsSidecar makes a pod that asks for the sidecar, in a namespace of that name with Pod Security "restricted".
func getsSidecar(t *testing.T, name string) {
	t.Helper()
	ns := namespace(t, name)
	kubectl(t, "label", "namespace", ns, "pod-security.kubernetes.io/enforce=restricted")
	apply(t, ns, holder(t, name, name, true))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=60s")
	logOf(t, ns, name, "app").next("granted")
	if list := kubectl(t, "-n", ns, "exec", name, "-c", "locksidecar", "--", "/locksidecar", "ls"); !strings.Contains(list, name) {
		t.Errorf("ls: %s", list)
	}
}

// A node is lost: its kubelet is killed, and its processes no longer run. The locks of its pods are free
// after the TTL, for a sidecar elsewhere. When the processes run again, the app learns that its lock is lost.
func TestLostNode(t *testing.T) {
	const ttl = 15 * time.Second // the default
	ns := namespace(t, "lost")
	apply(t, ns, holder(t, "lost", "lost", false))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/lost", "--timeout=60s")
	app := logOf(t, ns, "lost", "app")
	app.next("granted")

	elsewhere := filepath.Join(t.TempDir(), "elsewhere.sock")
	the.startElsewhere(t, ns, elsewhere)
	wait := the.inside("env", "LOCKSIDECAR_SOCKET="+elsewhere, abs(root+"/bin/locksidecar"), "acquire", "lost", "--wait", "60s", "--ttl", "2s")
	pids := []int{processOf(t, "locksidecar", "POD_NAME=lost"), processOf(t, "app", "HOSTNAME=lost")}
	_ = the.inside("pkill", "-KILL", "-f", "^"+the.kube+" kubelet ").Run()
	for _, pid := range pids {
		signal(t, pid, syscall.SIGSTOP)
	}
	stopped := time.Now()
	out, err := wait.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if after := time.Since(stopped); after > ttl+2*time.Second {
		t.Errorf("the lock was free after %s, the TTL is %s", after, ttl)
	} else {
		t.Logf("granted elsewhere %s after the node was lost", after.Round(time.Millisecond))
	}
	for _, pid := range pids {
		signal(t, pid, syscall.SIGCONT)
	}
	the.startKubelet()
	if err := the.until("the kubelet", func() error { return the.kubectl("-n", ns, "logs", "lost", "-c", "app").Run() }); err != nil {
		t.Fatal(err)
	}
	logOf(t, ns, "lost", "app").next("lost")
}

// startElsewhere starts a sidecar that is not of a pod of this node.
func (m *machine) startElsewhere(t *testing.T, ns, socket string) {
	t.Helper()
	cmd := m.start("elsewhere", "env", "LOCKSIDECAR_SOCKET="+socket, "LOCKSIDECAR_NAMESPACE="+ns,
		"LOCKSIDECAR_STORE_URL="+storeURL, "POD_NAME=elsewhere", abs(root+"/bin/locksidecar"), "serve")
	t.Cleanup(func() {
		_ = m.inside("pkill", "-f", "^"+abs(root+"/bin/locksidecar")+" serve").Run()
		_ = cmd.Process.Kill()
	})
	if err := m.until("the sidecar elsewhere", func() error {
		_, err := os.Stat(socket)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
