package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kubectl runs kubectl and returns what it says.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	var out, failed bytes.Buffer
	cmd := the.kubectl(args...)
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		t.Fatalf("kubectl %s: %v: %s%s", strings.Join(args, " "), err, &failed, &out)
	}
	return strings.TrimSpace(out.String())
}

// apply applies a manifest in a namespace, or, if ns is empty, in those that it names.
func apply(t *testing.T, ns, manifest string) {
	t.Helper()
	args := []string{"apply", "-f", "-"}
	if ns != "" {
		args = append(args, "-n", ns)
	}
	cmd := the.kubectl(args...)
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v: %s", err, out)
	}
}

// manifest is a file of deploy/.
func manifest(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// namespace makes a namespace with the store's URL, and deletes it with all pods after the test.
func namespace(t *testing.T, name string) string {
	t.Helper()
	kubectl(t, "create", "namespace", name)
	t.Cleanup(func() {
		if out, err := the.kubectl("delete", "namespace", name, "--timeout=90s").CombinedOutput(); err != nil {
			t.Errorf("delete namespace %s: %v: %s", name, err, out)
		}
	})
	kubectl(t, "-n", name, "create", "secret", "generic", "locksidecar", "--from-literal=store-url="+storeURL)
	kubectl(t, "-n", name, "wait", "--for=create", "serviceaccount/default", "--timeout=30s")
	return name
}

// pod is what the API server says of a pod.
type pod struct {
	Metadata struct{ UID string }
	Spec     struct {
		InitContainers []struct{ Name string }
	}
	Status struct {
		Phase                                    string
		InitContainerStatuses, ContainerStatuses []containerStatus
	}
}

type containerStatus struct {
	Name         string
	RestartCount int
	State        struct {
		Running    struct{ StartedAt time.Time }
		Terminated struct {
			ExitCode   int
			FinishedAt time.Time
		}
	}
}

func readPod(t *testing.T, ns, name string) (p pod) {
	t.Helper()
	if err := json.Unmarshal([]byte(kubectl(t, "-n", ns, "get", "pod", name, "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// sidecar and app are the states of a pod's two containers.
func (p *pod) sidecar() containerStatus { return p.Status.InitContainerStatuses[0] }
func (p *pod) app() containerStatus     { return p.Status.ContainerStatuses[0] }

// holder is a pod with an app that holds a lock. It has the sidecar of deploy/sidecar.yaml. With inject, it is
// left to the injector to add it.
func holder(t *testing.T, name, key string, inject bool) string {
	t.Helper()
	sidecar := ""
	if !inject {
		_, text, _ := strings.Cut(manifest(t, "sidecar.yaml"), "      initContainers:\n")
		text, _, _ = strings.Cut(text, "      containers:\n")
		sidecar = "  initContainers:\n" + strings.ReplaceAll("\n"+text, "\n    ", "\n")
	}
	volumes := `
  volumes:
    - name: locksidecar-socket
      emptyDir: { medium: Memory, sizeLimit: 1Mi }
    - name: locksidecar-store
      secret: { secretName: locksidecar, defaultMode: 0444 }`
	mounts := `
      env: [{ name: LOCKSIDECAR_SOCKET, value: /run/locksidecar/locksidecar.sock }]
      volumeMounts: [{ name: locksidecar-socket, mountPath: /run/locksidecar, readOnly: true }]`
	if inject {
		volumes, mounts = "", ""
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata:
  name: %s
  labels: { locksidecar.dev/inject: "true" }
spec:
  terminationGracePeriodSeconds: 30
%s
  containers:
    - name: app
      image: localhost/app:test
      args: [hold, %q]
      resources:
        requests: { cpu: 10m, memory: 8Mi }
        limits: { memory: 32Mi }
      securityContext:
        allowPrivilegeEscalation: false
        capabilities: { drop: ["ALL"] }
        readOnlyRootFilesystem: true
        runAsNonRoot: true
        runAsUser: 10001
        seccompProfile: { type: RuntimeDefault }%s
%s`, name, sidecar, key, mounts, volumes)
}

// log follows a container's log.
type log struct {
	t     *testing.T
	name  string
	lines chan line
}

// line is one of a log that was written with its time.
type line struct {
	at   time.Time
	text string
}

// logOf follows the log of a container, from its beginning.
func logOf(t *testing.T, ns, pod, container string) *log {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := the.kubectl("-n", ns, "logs", "-f", "--timestamps", pod, "-c", container)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	l := &log{t: t, name: pod + "/" + container, lines: make(chan line)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(l.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			stamp, text, _ := strings.Cut(scanner.Text(), " ")
			at, _ := time.Parse(time.RFC3339Nano, stamp)
			select {
			case l.lines <- line{at, text}:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		<-done
	})
	return l
}

// next waits for a line with this text.
func (l *log) next(text string) line {
	l.t.Helper()
	limit := time.After(patience)
	var before []string
	for {
		select {
		case got, open := <-l.lines:
			switch {
			case !open:
				l.t.Fatalf("%s has ended without %q: %q", l.name, text, before)
			case strings.Contains(got.text, text):
				return got
			}
			before = append(before[max(0, len(before)-9):], got.text)
		case <-limit:
			l.t.Fatalf("%s does not say %q within %s: %q", l.name, text, patience, before)
		}
	}
}

// processOf finds the process of a pod's container by a variable of its environment. Containers of the node are
// seen from outside.
func processOf(t *testing.T, program, variable string) int {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		environ, err := os.ReadFile(path)
		command, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "comm"))
		if err != nil || strings.TrimSpace(string(command)) != program {
			continue
		}
		for value := range strings.SplitSeq(string(environ), "\x00") {
			if value == variable {
				var pid int
				if _, err := fmt.Sscanf(path, "/proc/%d/environ", &pid); err != nil {
					t.Fatal(err)
				}
				return pid
			}
		}
	}
	t.Fatalf("no process %s with %s", program, variable)
	return 0
}

func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("signal %d: %v", sig, err)
	}
}
