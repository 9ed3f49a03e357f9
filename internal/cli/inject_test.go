package cli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const (
	labelledPod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {locksidecar.dev/inject: 'true'}}\nspec: {containers: [{name: app}]}\n"
	otherPod    = "apiVersion: v1\nkind: Pod # as it is\nmetadata: {name: other}\nspec: {containers: [{name: app}]}\n"
)

// injectCommand runs `inject` with a standard input.
func injectCommand(stdin string, args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	root := newRoot(&app{source: config.FromMap(nil)})
	root.SetArgs(append([]string{"inject"}, args...))
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errOut)
	err = root.Execute()
	return out.String(), errOut.String(), err
}

func manifest(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestInject(t *testing.T) {
	file, other := manifest(t, labelledPod), manifest(t, otherPod)
	for _, test := range []struct {
		stdin, args    string
		stdout, stderr string // parts
		sidecars       int
	}{
		{"", "-f -", "", "nothing to inject: there are no pods", 0},
		{labelledPod, "-f -", "image: ghcr.io/locksidecar/locksidecar:v0.1.0", "injected 1 of 1 workloads", 1},
		{otherPod, "-f -", otherPod, `injected none of 1 workloads: give their pods the label locksidecar.dev/inject: "true", or use --all`, 0},
		{otherPod, "-f - --all", "secretName: locksidecar", "injected 1 of 1", 1},
		{"", "-f " + file + " --filename " + other, "---\n" + otherPod, "injected 1 of 2", 1},
		{labelledPod, "-f " + other + " -f -", otherPod + "---\n", "injected 1 of 2", 1},
		{labelledPod, "-f - --image i:1", "image: i:1", "", 1},
		{labelledPod, "-f - --uid 0 --image-pull-policy Never", "imagePullPolicy: Never\n", "", 1},
		{labelledPod, "-f - --uid 1000", "runAsUser: 1000\n", "", 1},
		{labelledPod, "-f - --secret s", "secretName: s\n", "", 1},
		{labelledPod, "-f - --env OTEL_A=b=c --env X=", "- name: OTEL_A\n      value: b=c\n    - name: X\n      value: \"\"\n", "", 1},
		{"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {locksidecar.dev/inject: 'true'}}\n", "-f -", "", "locksidecar: Deployment web is not injected: its label", 0},
	} {
		stdout, stderr, err := injectCommand(test.stdin, strings.Fields(test.args)...)
		if err != nil || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) {
			t.Errorf("%s: %v, stderr %q, stdout:\n%s", test.args, err, stderr, stdout)
		}
		if n := strings.Count(stdout, "name: locksidecar-store\n"); n != 2*test.sidecars { // volume and mount
			t.Errorf("%s: %d:\n%s", test.args, n, stdout)
		}
	}
}

func TestInjectPrintsNothingWhenSomethingIsWrong(t *testing.T) {
	file, folder := manifest(t, labelledPod+"---\n"+otherPod+"a: [\nb: 2\n"), t.TempDir()
	for _, test := range []struct{ stdin, args, says string }{
		{"", "", "-f is missing: name a file with manifests"},
		{"", "web.yaml", "usage: locksidecar inject -f FILE"},
		{"", "-f /no/such/file", "-f /no/such/file: there is no such file"},
		{"", "-f " + folder, "is a folder: name its files"},
		{"", "-f " + file, file + ", document 2 (line 5): yaml: line 11: "},
		{labelledPod + "---\n" + strings.Replace(labelledPod, "app", "locksidecar", 1), "-f -", "standard input, document 2 (line 5): Pod web: spec.containers[locksidecar] is no native sidecar"},
		{labelledPod, "-f - --image=", `--image is ""`},
		{labelledPod, "-f - --secret A", `--secret is "A"`},
		{labelledPod, "-f - --env A", `--env "A": it must be NAME=VALUE`},
		{labelledPod, "-f - --env LOCKSIDECAR_SOCKET=/x", "--env LOCKSIDECAR_SOCKET is set already"},
	} {
		stdout, stderr, err := injectCommand(test.stdin, strings.Fields(test.args)...)
		if exitcode.Of(err) != exitcode.Usage || !strings.Contains(err.Error(), test.says) || stdout+stderr != "" {
			t.Errorf("%s: code %d, %v; want %q; printed %q, %q", test.args, exitcode.Of(err), err, test.says, stdout, stderr)
		}
	}
}

// A pipe that has ended, or a disk that is full, is no mistake of the command line.
func TestInjectSaysThatItCouldNotWrite(t *testing.T) {
	root := newRoot(&app{source: config.FromMap(nil)})
	root.SetArgs([]string{"inject", "-f", manifest(t, labelledPod)})
	root.SetOut(brokenPipe{})
	root.SetErr(&bytes.Buffer{})
	if err := root.Execute(); exitcode.Of(err) != exitcode.Unexpected {
		t.Error(err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestInjectHelpTeaches(t *testing.T) {
	stdout, _, err := injectCommand("", "--help")
	for _, part := range []string{"--all", "--post-renderer", "postrenderer/v1", "kubectl kustomize", "locksidecar.dev/containers", "spec.template.metadata.labels", "--stale", "kubectl rollout restart", "locksidecar.dev/cpu-limit", "and 1 if there are"} {
		if err != nil || !strings.Contains(stdout, part) {
			t.Errorf("%v: no %q in\n%s", err, part, stdout)
		}
	}
}
