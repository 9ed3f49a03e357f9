package inject

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/certificate"
	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
)

const (
	// serverName is how an API server calls the injector's Service.
	serverName = "locksidecar-injector.locksidecar.svc"
	patience   = 20 * time.Second
)

// cluster is a running webhook and who asks it.
type cluster struct {
	t       *testing.T
	ca      *certtest.Authority
	secret  *certtest.Secret
	webhook *Webhook
	client  *http.Client
	log     *logText
}

// start starts a webhook with a certificate until notAfter, looked at whenever it is used.
func start(t *testing.T, notAfter time.Time) *cluster {
	t.Helper()
	return startWith(t, notAfter, "", 0)
}

// startFor starts a webhook that only clients of a CA may ask, unless the file is empty.
func startFor(t *testing.T, notAfter time.Time, clientCA string) *cluster {
	t.Helper()
	return startWith(t, notAfter, clientCA, 0)
}

// startWith starts a webhook that gives requests so long to arrive; zero: as usual.
func startWith(t *testing.T, notAfter time.Time, clientCA string, timeout time.Duration) *cluster {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) }) // the last one
	c := &cluster{t: t, ca: certtest.New(t), log: &logText{}}
	c.secret = certtest.Mount(t, c.ca.Issue(serverName, notAfter))
	log := slog.New(slog.NewTextHandler(c.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	loaded, err := certificate.Load(certificate.Files{Cert: c.secret.CertFile(), Key: c.secret.KeyFile(), ClientCA: clientCA}, log)
	if err != nil {
		t.Fatal(err)
	}
	loaded.Every = 0
	c.webhook = NewWebhook(WebhookConfig{
		Listen: "127.0.0.1:0", Certificate: loaded, Logger: log,
		Options:     Options{Image: DefaultImage, Secret: DefaultSecret, User: DefaultUser},
		readTimeout: timeout,
		Metrics:     "127.0.0.1:0",
		Version:     "v1",
	})
	if err := c.webhook.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.webhook.Stop)
	c.client = &http.Client{Timeout: patience, Transport: c.trusting()}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// trusting connects as API servers do, and shows certificates.
func (c *cluster) trusting(certificates ...tls.Certificate) *http.Transport {
	return &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: c.ca.Pool(), ServerName: serverName, Certificates: certificates},
		ForceAttemptHTTP2: true,

		ExpectContinueTimeout: patience,
	}
}

// answer is a response, read.
type answer struct {
	status  int
	body    string
	version int // of HTTP
}

func (c *cluster) do(method, path, contentType string, body io.Reader) answer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, "https://"+c.webhook.Addr().String()+path, body)
	if err != nil {
		c.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{resp.StatusCode, string(text), resp.ProtoMajor}
}

// review asks about an object, as JSON.
func (c *cluster) review(operation, kind, object string) response {
	c.t.Helper()
	a := c.do("POST", "/mutate", "application/json", strings.NewReader(reviewOf(operation, kind, object)))
	if a.status != http.StatusOK {
		c.t.Fatalf("%d %s", a.status, a.body)
	}
	var out review
	if err := json.Unmarshal([]byte(a.body), &out); err != nil {
		c.t.Fatal(err)
	}
	if out.APIVersion != reviewVersion || out.Kind != reviewKind || out.Response == nil || out.Response.UID != "u-1" {
		c.t.Fatalf("an API server would not take %s", a.body)
	}
	return *out.Response
}

func reviewOf(operation, kind, object string) string {
	return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1","kind":{"group":"","version":"v1","kind":"` +
		kind + `"},"namespace":"shop","operation":"` + operation + `","dryRun":true,"object":` + object + `}}`
}

const asked = `{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"web-","labels":{"locksidecar.dev/inject":"true"}},` +
	`"spec":{"containers":[{"name":"web","image":"web:1","unknown":12345678901234567890,"env":[{"name":"PASSWORD","value":"hunter2"}]}]}}`

func TestInjects(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	out := c.review("CREATE", "Pod", asked)
	if !out.Allowed || out.PatchType != "JSONPatch" || out.Status != nil {
		t.Fatalf("got %+v", out)
	}
	want, err := Pod(fromJSON(t, asked), Options{Image: DefaultImage, Secret: DefaultSecret, User: DefaultUser})
	if err != nil {
		t.Fatal(err)
	}
	got := applied(t, fromJSON(t, asked), out.Patch)
	sameJSON(t, got, want)
	if !strings.Contains(toJSON(t, got), `"unknown":12345678901234567890`) {
		t.Error("a number is not as it was")
	}

	injected := toJSON(t, want)
	if again := c.review("CREATE", "Pod", injected); !again.Allowed || again.Patch != nil || again.PatchType != "" {
		t.Errorf("asked again (reinvocation), it says %+v", again)
	}
	if !c.log.has(`level=INFO msg="pod injected" namespace=shop uid=u-1 dry_run=true generate_name=web-`) {
		t.Errorf("log:\n%s", c.log)
	}
	if c.log.has("hunter2") {
		t.Error("the log has what stands in a pod")
	}
}

func TestLeavesAlone(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	for name, out := range map[string]response{
		"update":    c.review("UPDATE", "Pod", asked),
		"delete":    c.review("DELETE", "Pod", "null"),
		"other":     c.review("CREATE", "Deployment", `{"spec":{}}`),
		"opted out": c.review("CREATE", "Pod", strings.Replace(asked, `"true"`, `"false"`, 1)),
	} {
		if !out.Allowed || out.Patch != nil || out.PatchType != "" || out.Status != nil {
			t.Errorf("%s: got %+v", name, out)
		}
	}
}

func TestRefuses(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	wrong := strings.Replace(asked, `"generateName":"web-"`, `"name":"web","annotations":{"locksidecar.dev/ttl":"soon"}`, 1)
	_, want := Pod(fromJSON(t, wrong), Options{})
	out := c.review("CREATE", "Pod", wrong)
	if out.Allowed || out.Patch != nil || out.PatchType != "" || out.Status == nil {
		t.Fatalf("got %+v", out)
	}
	if *out.Status != (state{422, "Invalid", want.Error()}) {
		t.Errorf("got %+v", *out.Status)
	}
	if !c.log.has(`level=WARN msg="pod refused" namespace=shop uid=u-1`) || !c.log.has("locksidecar.dev/ttl") {
		t.Errorf("log:\n%s", c.log)
	}
}

// A caller of the webhook can write into its log, but not much.
func TestTheLogTakesNoLongTexts(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	long := strings.Repeat("é", maxLogged) // 2 bytes each; one byte in front, and the border is inside of one
	named := strings.Replace(asked, `"generateName"`, `"annotations":{"locksidecar.dev/ttl":"`+long+`"},"generateName"`, 1)
	for _, call := range []struct{ body, logs string }{
		{reviewOf("CREATE", "Pod", strings.Replace(asked, "web-", "x"+long, 1)), "generate_name=x"},
		{strings.Replace(reviewOf("CREATE", "Pod", asked), `"dryRun"`, `"name":"x`+long+`","dryRun"`, 1), " name=x"},
		{strings.Replace(reviewOf("CREATE", "Pod", asked), "shop", "x"+long, 1), "namespace=x"},
		{strings.Replace(reviewOf("CREATE", "Pod", asked), "u-1", "x"+long, 1), "uid=x"},
		{reviewOf("CREATE", "x"+long, "{}"), "kind=x"},
		{reviewOf("x"+long, "Pod", "{}"), "operation=x"},
		{reviewOf("CREATE", "Pod", named), "reason="},
		{strings.Replace(reviewOf("CREATE", "Pod", asked), "AdmissionReview", long, 1), "error="},
	} {
		before := len(c.log.String())
		c.do("POST", "/mutate", "application/json", strings.NewReader(call.body))
		line := c.log.String()[before:]
		if !strings.Contains(line, call.logs) || strings.Count(line, "é") < maxLogged/4 || len(line) > 2*maxLogged || !utf8.ValidString(line) || strings.Contains(line, `\x`) {
			t.Errorf("%s: %q", call.logs, line)
		}
	}
}

// Proves: threat webhook client
func TestCallsThatMakeNoSense(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	right := reviewOf("CREATE", "Pod", asked)
	for _, call := range []struct {
		name, method, path, contentType, body string
		status                                int
		says                                  string
	}{
		{"garbage", "POST", "/mutate", "application/json", "{", 400, "this is no review"},
		{"two", "POST", "/mutate", "application/json", right + right, 400, "this is no review"},
		{"version", "POST", "/mutate", "application/json", strings.Replace(right, "k8s.io/v1", "k8s.io/v1beta1", 1), 400, `"admission.k8s.io/v1beta1"`},
		{"kind", "POST", "/mutate", "application/json", strings.Replace(right, "AdmissionReview", "ConversionReview", 1), 400, `"ConversionReview"`},
		{"no request", "POST", "/mutate", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400, "no request"},
		{"no uid", "POST", "/mutate", "application/json", strings.Replace(right, "u-1", "", 1), 400, "no uid"},
		{"no object", "POST", "/mutate", "application/json", reviewOf("CREATE", "Pod", "null"), 400, "no pod"},
		{"list", "POST", "/mutate", "application/json", reviewOf("CREATE", "Pod", "[]"), 400, "no pod"},
		{"too large", "POST", "/mutate", "application/json", strings.Repeat(" ", maxReview+1), 413, "larger than 2097152 bytes"},
		{"too many values", "POST", "/mutate", "application/json", strings.Replace(right, `"hunter2"`, `[`+strings.Repeat("0,", maxValues)+`0]`, 1), 413, "more than 20000 values"},
		{"protobuf", "POST", "/mutate", "application/vnd.kubernetes.protobuf", right, 415, "must be application/json"},
		{"no type", "POST", "/mutate", "", right, 415, "must be application/json"},
		{"GET", "GET", "/mutate", "", "", 405, "Method Not Allowed"},
		{"path", "POST", "/", "application/json", right, 404, "not found"},
	} {
		got := c.do(call.method, call.path, call.contentType, strings.NewReader(call.body))
		if got.status != call.status || !strings.Contains(got.body, call.says) {
			t.Errorf("%s: %d %s; want %d %s", call.name, got.status, got.body, call.status, call.says)
		}
	}
	punctuation := strings.Replace(right, "hunter2", strings.Repeat(`{,\"[\\`, maxValues), 1)
	if got := c.do("POST", "/mutate", "application/json", strings.NewReader(punctuation)); got.status != 200 {
		t.Errorf("what stands in a text counts: %+v", got)
	}
	if got := c.do("POST", "/mutate", "application/json; charset=utf-8", strings.NewReader(right)); got.status != 200 || got.version != 2 {
		t.Errorf("got %+v", got)
	}
}

// No more reviews are decoded at a time than memory is meant for; the rest wait.
// Proves: threat webhook client
func TestLimitsReviews(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	for range maxReviews {
		c.webhook.reviews <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "/mutate", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	got := httptest.NewRecorder()
	c.webhook.mutate(false)(got, req)
	if got.Code != http.StatusServiceUnavailable {
		t.Errorf("who gave up is told %d", got.Code)
	}
	if got := c.do("GET", "/readyz", "", nil); got.status != 200 {
		t.Errorf("probes need no place: %+v", got)
	}
	waiting := make(chan response)
	go func() { waiting <- c.review("CREATE", "Pod", asked) }()
	<-c.webhook.reviews
	if out := <-waiting; !out.Allowed {
		t.Errorf("got %+v", out)
	}
	for range maxReviews { // a place is handed back
		c.review("CREATE", "Pod", asked)
	}
}

// A slow or a large call keeps no small review waiting, and nearly all are small.
// Proves: threat webhook client
func TestSlowAndLargeCallsKeepNobodyWaiting(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer cancel()
	for range maxReviews + 1 {
		body, sending := io.Pipe()
		t.Cleanup(func() { _ = sending.Close() }) // it was never whole
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+c.webhook.Addr().String()+"/mutate", body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Expect", "100-continue") // so that the body is sent when the webhook reads it
		req.ContentLength = 1000
		calls.Go(func() {
			if resp, err := c.client.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
		if _, err := sending.Write([]byte("{")); err != nil {
			t.Fatal(err)
		}
	}
	c.webhook.large <- struct{}{} // a large one is under way
	began := time.Now()
	if out := c.review("CREATE", "Pod", asked); !out.Allowed || time.Since(began) > 5*time.Second {
		t.Fatalf("an API server would have given up: %v, %+v", time.Since(began), out)
	}
	large := strings.Replace(asked, `"hunter2"`, `"`+strings.Repeat("x", smallReview)+`"`, 1)
	waiting := make(chan response)
	go func() { waiting <- c.review("CREATE", "Pod", large) }()
	select {
	case out := <-waiting:
		t.Errorf("two large ones at a time: %+v", out)
	case <-time.After(50 * time.Millisecond): // it waits, or has not arrived yet
	}
	<-c.webhook.large
	if out := <-waiting; !out.Allowed {
		t.Errorf("got %+v", out)
	}
}

func TestHealth(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	for _, path := range []string{"/healthz", "/readyz"} {
		if got := c.do("GET", path, "", nil); got.status != 200 {
			t.Errorf("%s: %+v", path, got)
		}
	}
	c.client.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true // as the kubelet does
	c.secret.Update(c.ca.Issue(serverName, time.Now().Add(-time.Minute)))
	if got := c.do("GET", "/readyz", "", nil); got.status != 503 || !strings.Contains(got.body, c.secret.CertFile()+" has expired at 20") {
		t.Errorf("got %+v", got)
	}
	if !c.log.has(`level=WARN msg="not ready"`) { // the kubelet's events do not quote the answer
		t.Errorf("log:\n%s", c.log)
	}
	if got := c.do("GET", "/healthz", "", nil); got.status != 200 {
		t.Errorf("a restart does not help: %+v", got)
	}
	c.secret.Update(c.ca.Issue(serverName, time.Now().Add(time.Hour)))
	if got := c.do("GET", "/readyz", "", nil); got.status != 200 {
		t.Errorf("got %+v", got)
	}
	if err := c.webhook.cfg.Certificate.Valid(time.Now().Add(-2 * time.Hour)); err == nil || !strings.Contains(err.Error(), "is valid from") {
		t.Errorf("got %v", err)
	}
}

func TestStartAndStop(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	second := NewWebhook(WebhookConfig{Listen: c.webhook.Addr().String(), Certificate: c.webhook.cfg.Certificate, Logger: c.webhook.log})
	if err := second.Start(t.Context()); err == nil || !strings.Contains(err.Error(), c.webhook.Addr().String()) {
		t.Errorf("got %v", err)
	}
	second.Stop()
	c.webhook.Stop()
	c.webhook.Stop()
	if _, err := net.Dial("tcp", c.webhook.Addr().String()); err == nil {
		t.Error("it still listens")
	}
}

// A stop waits for the calls that are running.
func TestStopFinishesReviews(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	body, send := io.Pipe()
	answered := make(chan answer)
	go func() { answered <- c.do("POST", "/mutate", "application/json", body) }()
	right := reviewOf("CREATE", "Pod", asked)
	if _, err := io.WriteString(send, right[:100]); err != nil { // is read when it is sent
		t.Fatal(err)
	}
	within(t, "the review is under way", func() bool { return len(c.webhook.large) == 1 }) // of unknown length
	stopped := make(chan struct{})
	go func() { c.webhook.Stop(); close(stopped) }()
	within(t, "nobody listens", func() bool {
		conn, err := net.Dial("tcp", c.webhook.Addr().String())
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	select {
	case <-stopped:
		t.Error("stopped while a review is under way")
	default:
	}
	_, err := io.WriteString(send, right[100:])
	if err := errors.Join(err, send.Close()); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got.status != 200 || !strings.Contains(got.body, `"allowed":true`) {
		t.Errorf("got %+v", got)
	}
	<-stopped
}

// A client that does not trust the certificate is worth a line; one that only connects is
// not.
func TestLogsConnections(t *testing.T) {
	c := start(t, time.Now().Add(time.Hour))
	conn, err := net.Dial("tcp", c.webhook.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	stranger := &tls.Dialer{Config: &tls.Config{RootCAs: certtest.New(t).Pool(), ServerName: serverName}}
	if _, err := stranger.DialContext(t.Context(), "tcp", c.webhook.Addr().String()); err == nil {
		t.Fatal("trusted")
	}
	within(t, "a line", func() bool { return c.log.has("bad certificate") })
	c.webhook.Stop()
	if !c.log.has(`msg="connection failed"`) || c.log.has("EOF") {
		t.Errorf("log:\n%s", c.log)
	}
}

func within(t *testing.T, what string, yes func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !yes(); time.Sleep(time.Millisecond) { // the pause of a poll
		if time.Now().After(late) {
			t.Fatalf("waiting for: %s", what)
		}
	}
}

// logText keeps what is logged.
type logText struct{ logtest.Log }

func (l *logText) has(part string) bool { return strings.Contains(l.String(), part) }

func (l *logText) count(part string) int { return strings.Count(l.String(), part) }
