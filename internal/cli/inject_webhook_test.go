package cli

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
		"inject", "--webhook", "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0",
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
