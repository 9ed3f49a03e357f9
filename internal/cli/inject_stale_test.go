package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/inject"
	"github.com/locksidecar/locksidecar/internal/kubeapi"
)

const runningPods = `{"kind":"List","items":[
	{"metadata":{"namespace":"shop","name":"old-1","ownerReferences":[{"kind":"ReplicaSet","name":"old","controller":true}],"annotations":{"locksidecar.dev/injected-version":"v0.0.9"}},
	 "spec":{"initContainers":[{"name":"locksidecar","image":"` + inject.DefaultImage + `"}]}},
	{"metadata":{"namespace":"shop","name":"odd"},"spec":{"initContainers":[{"name":"locksidecar","image":"l@sha256:00"}]}},
	{"metadata":{"namespace":"shop","name":"new"},"spec":{"initContainers":[{"name":"locksidecar","image":"` + inject.DefaultImage + `"}]}},
	{"metadata":{"namespace":"shop","name":"none"},"spec":{"containers":[{"name":"app"}]}}]}`

// test/k8s asks a real API server.
func TestInjectStale(t *testing.T) {
	stdout, stderr, err := injectCommand(runningPods, "--stale", "-f", "-")
	lines := strings.Split(stdout, "\n")
	if exitcode.Of(err) != staleFound || len(lines) != 4 || !strings.Contains(stderr, "2 of 3 running sidecars are older than "+inject.Version()) {
		t.Fatalf("%v %s\n%s", err, stderr, stdout)
	}
	for i, want := range []string{"NAMESPACE POD OWNER VERSION AGE IMAGE", "shop odd - - - l@", "shop old-1 ReplicaSet/old v0.0.9 - ghcr"} {
		if got := strings.Join(strings.Fields(lines[i]), " "); !strings.HasPrefix(got, want) {
			t.Errorf("line %d is %q, want %q", i, got, want)
		}
	}
	stdout, stderr, err = injectCommand(runningPods, "--stale", "-f", "-", "-o", "json")
	var found inject.Stale
	if decodeErr := json.Unmarshal([]byte(stdout), &found); decodeErr != nil || exitcode.Of(err) != staleFound || len(found.Pods) != 2 || found.Sidecars != 3 || stderr != "" {
		t.Errorf("%v %v %s %s", err, decodeErr, stdout, stderr)
	}
	stdout, _, err = injectCommand(`{"kind":"PodList","items":[]}`, "--stale", "-f", "-", "-o", "json")
	if want := `{"version":"` + inject.Version() + `","sidecars":0,"pods":[]}` + "\n"; err != nil || stdout != want {
		t.Errorf("%v %s", err, stdout)
	}
}

func TestInjectStaleSaysWhatIsMissing(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv(kubeapi.PodVariable, "")
	for _, test := range []struct {
		args string
		code int
		says string
	}{
		{"--stale", exitcode.Config, "and this is no pod: name one with --kubeconfig, or pass what `kubectl get pods --all-namespaces -o json` prints with -f -"},
		{"--stale --kubeconfig " + filepath.Join(t.TempDir(), "none"), exitcode.Config, "none: no such file"},
		{"--stale -f " + manifest(t, labelledPod), exitcode.Usage, "is no list of pods"},
		{"--stale --webhook", exitcode.Usage, "--webhook and --stale: use one of them"},
		{"--stale --all", exitcode.Usage, "--all is for manifests alone"},
		{"--stale --uid 0", exitcode.Usage, "--uid is for injection, and --stale injects nothing"},
		{"-f - -n shop", exitcode.Usage, "--namespace is for --stale"},
		{"-f - -o json", exitcode.Usage, "--output is for --stale"},
		{"-f - --metrics :1", exitcode.Usage, "--metrics is for --webhook"},
		{"--webhook --metrics 1", exitcode.Usage, `--metrics "1": it must be host:port`},
	} {
		stdout, stderr, err := injectCommand("", strings.Fields(test.args)...)
		if exitcode.Of(err) != test.code || !strings.Contains(err.Error(), test.says) || stdout+stderr != "" {
			t.Errorf("%s: code %d, %v; want %q; printed %q, %q", test.args, exitcode.Of(err), err, test.says, stdout, stderr)
		}
	}
	t.Setenv(kubeapi.PodVariable, "127.0.0.1")
	if _, _, err := injectCommand("", "--stale"); exitcode.Of(err) != exitcode.Config || !strings.Contains(err.Error(), "the pod's service account") {
		t.Error(err)
	}
}
