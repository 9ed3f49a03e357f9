package cli

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
)

const injectorName = "locksidecar-injector.locksidecar.svc"

// injector is a process that serves the webhook.
type injector struct {
	t     *testing.T
	log   *logtest.Log
	cmd   *exec.Cmd
	ended chan struct{}
	url   string
}

// startInjector starts `locksidecar inject --webhook` as a pod does, and does not wait.
func startInjector(t *testing.T, secret *certtest.Secret, args ...string) *injector {
	t.Helper()
	in := &injector{t: t, log: &logtest.Log{}, ended: make(chan struct{})}
	in.cmd = exec.Command(os.Args[0], append([]string{
		"inject", "--webhook", "--listen=127.0.0.1:0",
		"--certificate=" + secret.CertFile(), "--key=" + secret.KeyFile(),
	}, args...)...)
	in.cmd.Env = append(os.Environ(), processEnv+"=command", "KUBERNETES_SERVICE_HOST=10.0.0.1", "GORACE=atexit_sleep_ms=0")
	in.cmd.Stdout, in.cmd.Stderr = in.log, in.log
	if err := in.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = in.cmd.Wait(); close(in.ended) }()
	t.Cleanup(func() { _ = in.cmd.Process.Kill(); <-in.ended })
	return in
}

// serving waits until it serves.
func (in *injector) serving() *injector {
	in.t.Helper()
	in.log.Await(in.t, "the injector serves")
	for line := range strings.Lines(in.log.String()) {
		var said struct {
			Msg     string `json:"msg"`
			Address string `json:"address"`
		}
		if err := json.Unmarshal([]byte(line), &said); err != nil {
			in.t.Fatalf("%q: %v", line, err)
		}
		if said.Msg == "the injector serves" {
			in.url = "https://" + said.Address
		}
	}
	return in
}

func (in *injector) signal(sig syscall.Signal) {
	in.t.Helper()
	if err := in.cmd.Process.Signal(sig); err != nil {
		in.t.Fatal(err)
	}
}

// exit waits for its end and returns the exit code.
func (in *injector) exit() int {
	in.t.Helper()
	select {
	case <-in.ended:
		return in.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		in.t.Fatalf("it does not end; its log:\n%s", in.log.String())
		return -1
	}
}

// apiServer asks as one does: it keeps connections if keep, and knows the CA.
func apiServer(t *testing.T, ca *x509.CertPool, keep bool) *http.Client {
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: ca, ServerName: injectorName},
		ForceAttemptHTTP2: true,
		DisableKeepAlives: !keep,
	}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// review has a pod injected, and says which certificate it was shown.
func (in *injector) review(client *http.Client) (serial int64, err error) {
	const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1",` +
		`"kind":{"group":"","version":"v1","kind":"Pod"},"namespace":"shop","operation":"CREATE",` +
		`"object":{"metadata":{"name":"web"},"spec":{"containers":[{"name":"web","image":"web:1"}]}}}}`
	resp, err := client.Post(in.url+"/mutate", "application/json", strings.NewReader(review))
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"allowed":true,"patch":"`)) {
		return 0, fmt.Errorf("%d %s", resp.StatusCode, body)
	}
	return resp.TLS.PeerCertificates[0].SerialNumber.Int64(), nil
}

// While its certificate is replaced, and after SIGTERM for as long as somebody may be sent
// to it, every review is answered. A second signal ends the wait.
func TestInjectorAnswersToTheEnd(t *testing.T) {
	ca := certtest.New(t)
	secret := certtest.Mount(t, ca.Issue(injectorName, time.Now().Add(time.Hour)))
	in := startInjector(t, secret, "--shutdown-delay=1h").serving()
	fresh, kept := apiServer(t, ca.Pool(), false), apiServer(t, ca.Pool(), true)
	first, err := in.review(fresh)
	if err != nil {
		t.Fatal(err)
	}
	var done atomic.Bool
	var answered atomic.Int32
	var clients sync.WaitGroup
	for _, client := range []*http.Client{fresh, kept} {
		clients.Go(func() {
			for !done.Load() {
				if _, err := in.review(client); err != nil {
					t.Errorf("after %d answers: %v", answered.Load(), err)
					return
				}
				answered.Add(1)
			}
		})
	}
	secret.Update(ca.Issue(injectorName, time.Now().Add(time.Hour)))
	for late := time.Now().Add(patience); ; {
		serial, err := in.review(fresh)
		if err != nil {
			t.Fatal(err)
		}
		if serial == first+1 {
			break
		}
		if time.Now().After(late) {
			t.Fatal("the new certificate is not taken")
		}
	}
	in.signal(syscall.SIGTERM)
	in.log.Await(t, `"msg":"stopping","reason":"signal: terminated","shutdown_delay":"1h0m0s"`)
	for since := answered.Load(); answered.Load() < since+10 && !t.Failed(); {
		if _, err := in.review(fresh); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	clients.Wait()
	in.signal(syscall.SIGTERM)
	if code := in.exit(); code != exitcode.OK || !strings.Contains(in.log.String(), `"msg":"stopped"`) {
		t.Errorf("exit code %d:\n%s", code, in.log.String())
	}
}

func TestInjectorStops(t *testing.T) {
	ca := certtest.New(t)
	in := startInjector(t, certtest.Mount(t, ca.Issue(injectorName, time.Now().Add(time.Hour))), "--shutdown-delay=1ms").serving()
	if _, err := in.review(apiServer(t, ca.Pool(), true)); err != nil { // a connection without a call ends, too
		t.Fatal(err)
	}
	in.signal(syscall.SIGTERM)
	if code := in.exit(); code != exitcode.OK {
		t.Errorf("exit code %d:\n%s", code, in.log.String())
	}
}

// In its own process, because it takes the signals.
func TestInjectorDoesNotStart(t *testing.T) {
	ca := certtest.New(t)
	secret := certtest.Mount(t, ca.Issue(injectorName, time.Now().Add(time.Hour)))
	taken := strings.TrimPrefix(startInjector(t, secret).serving().url, "https://")
	nothing := filepath.Join(t.TempDir(), "tls.crt")
	for _, wrong := range []struct {
		arg  string
		code int
		says string
	}{
		{"--listen=" + taken, exitcode.CannotOpen, taken},
		{"--certificate=" + nothing, exitcode.Config, nothing},
		{"--key=" + secret.CertFile(), exitcode.Config, secret.CertFile()},
	} {
		in := startInjector(t, secret, wrong.arg)
		if code := in.exit(); code != wrong.code || !strings.Contains(in.log.String(), "locksidecar: ") || !strings.Contains(in.log.String(), wrong.says) {
			t.Errorf("%s: exit code %d:\n%s", wrong.arg, code, in.log.String())
		}
	}
}

func TestInjectorCommandLine(t *testing.T) {
	for _, wrong := range []struct{ args, says string }{
		{"--webhook -f pod.yaml", "--filename"},
		{"--webhook --listen 8443", `--listen "8443": it must be host:port, such as :8443`},
		{"--webhook --listen :", `--listen ":"`},
		{"--webhook --shutdown-delay -1s", "--shutdown-delay -1s"},
		{"--webhook --env A", `--env "A": it must be NAME=VALUE`},
		{"--listen :8443 -f -", "--listen is for --webhook"},
		{"--shutdown-delay 1s -f -", "--shutdown-delay is for --webhook"},
		{"--certificate c --key k -f -", "--certificate is for --webhook"},
		{"--key k -f -", "--key is for --webhook"},
	} {
		_, err := command(append([]string{"inject"}, strings.Fields(wrong.args)...)...)
		if exitcode.Of(err) != exitcode.Usage || !strings.Contains(err.Error(), wrong.says) {
			t.Errorf("%s: %v", wrong.args, err)
		}
	}
}

// certificate.sh makes what the API server and the injector need. Run again, it makes
// another certificate of the same CA.
func TestCertificateScript(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "tls")
	run := func() (certtest.Pair, []byte) {
		t.Helper()
		out, err := exec.Command("../../deploy/injector/certificate.sh", folder).CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--patch-file "+folder+"/ca-bundle.yaml")) {
			t.Fatalf("%v\n%s", err, out)
		}
		var secret struct {
			Type     string
			Metadata struct{ Name, Namespace string }
			Data     map[string][]byte
		}
		var patch struct {
			Webhooks []struct {
				Name         string
				ClientConfig struct{ CABundle []byte }
			}
		}
		if err := errors.Join(readYAML(folder+"/secret.yaml", &secret), readYAML(folder+"/ca-bundle.yaml", &patch)); err != nil {
			t.Fatal(err)
		}
		if secret.Type != "kubernetes.io/tls" || secret.Metadata.Name != "locksidecar-injector" || secret.Metadata.Namespace != "locksidecar" {
			t.Errorf("the Deployment mounts another Secret than %+v", secret.Metadata)
		}
		if len(patch.Webhooks) != 2 || patch.Webhooks[0].Name != "pod.inject.locksidecar.dev" || patch.Webhooks[1].Name != "namespace.inject.locksidecar.dev" ||
			!bytes.Equal(patch.Webhooks[0].ClientConfig.CABundle, patch.Webhooks[1].ClientConfig.CABundle) {
			t.Errorf("the patch is for other webhooks: %+v", patch)
		}
		return certtest.Pair{Cert: secret.Data["tls.crt"], Key: secret.Data["tls.key"]}, patch.Webhooks[0].ClientConfig.CABundle
	}
	first, bundle := run()
	if err := os.Chmod(folder+"/secret.yaml", 0o644); err != nil {
		t.Fatal(err)
	}
	second, same := run()
	if !bytes.Equal(bundle, same) || bytes.Equal(first.Cert, second.Cert) || bytes.Equal(first.Key, second.Key) {
		t.Error("made again, there must be the same CA and another certificate")
	}
	for _, file := range []string{"ca.key", "secret.yaml"} {
		if info, err := os.Stat(filepath.Join(folder, file)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("others may read %s: %v, %v", file, info.Mode(), err)
		}
	}
	if ignored, err := os.ReadFile(filepath.Join(folder, ".gitignore")); string(ignored) != "*\n" {
		t.Errorf("git would take the keys: %v, %q", err, ignored)
	}
	ca := x509.NewCertPool()
	if !ca.AppendCertsFromPEM(bundle) {
		t.Fatalf("no certificate: %s", bundle)
	}
	for _, pair := range []certtest.Pair{first, second} {
		in := startInjector(t, certtest.Mount(t, pair)).serving()
		if _, err := in.review(apiServer(t, ca, false)); err != nil {
			t.Error(err)
		}
	}
}

// The folder's name may be any, and the commands that are printed have it as a shell takes it.
func TestCertificateScriptQuotesItsFolder(t *testing.T) {
	script, err := filepath.Abs("../../deploy/injector/certificate.sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, folder := range []string{"it's a folder", "-x", "$(a)"} {
		made := exec.Command(script, folder)
		made.Dir = dir
		out, err := made.CombinedOutput()
		_, args, _ := strings.Cut(string(out), " --patch-file ")
		args, _, _ = strings.Cut(args, "\n")
		read := exec.Command("sh", "-c", "cat -- "+args)
		read.Dir = dir
		if got, catErr := read.CombinedOutput(); err != nil || catErr != nil || !bytes.HasPrefix(got, []byte("webhooks:")) {
			t.Errorf("%s: %v\n%s\n%v\n%s", folder, err, out, catErr, got)
		}
		if _, err := os.Stat(filepath.Join(dir, folder, "ca.key")); err != nil {
			t.Error(err)
		}
	}
}

func TestCertificateScriptNeedsBothHalvesOfACA(t *testing.T) {
	for _, file := range []string{"ca.crt", "ca.key"} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("../../deploy/injector/certificate.sh", folder).CombinedOutput()
		if err == nil || !strings.Contains(string(out), folder+" has "+file+" without ca.") || !strings.Contains(string(out), "remove "+file+" to have a new CA") {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

// Its keys do not stay in a temporary folder.
func TestCertificateScriptCleansUpWhenStopped(t *testing.T) {
	taken := make(chan os.Signal, 1)
	signal.Notify(taken, syscall.SIGINT, syscall.SIGHUP) // under nohup the script could not trap them
	defer signal.Stop(taken)
	bin, temp := t.TempDir(), t.TempDir()
	openssl := "#!/bin/sh\nls -d \"$TMPDIR\"/*\nkill -s \"$STOP\" \"$PPID\"\n"
	if err := os.WriteFile(filepath.Join(bin, "openssl"), []byte(openssl), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, code := range map[string]int{"INT": 130, "TERM": 143, "HUP": 129} {
		cmd := exec.Command("../../deploy/injector/certificate.sh", filepath.Join(t.TempDir(), "tls"))
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TMPDIR="+temp, "STOP="+name)
		out, err := cmd.CombinedOutput()
		left, readErr := os.ReadDir(temp)
		if cmd.ProcessState.ExitCode() != code || !strings.HasPrefix(string(out), temp) || readErr != nil || len(left) > 0 {
			t.Errorf("%s: %v, %v, left %v\n%s", name, err, readErr, left, out)
		}
	}
}

func readYAML(file string, into any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return yaml.Unmarshal(text, into)
}
