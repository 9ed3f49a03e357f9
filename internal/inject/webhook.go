package inject

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/locksidecar/locksidecar/internal/certificate"
)

// The webhook's limits. An API server asks for one small pod at a time, and gives up after the timeoutSeconds
// of its configuration, 5 in deploy/injector/webhook.yaml.
//
// maxConnections and maxStreams limit the bodies. Each review has its own permit before its body is read, so a
// slow one does not block others. If all are half-sent reviews, they take 60 MiB of the container's 256.
const (
	maxConnections = 128      // connections says what happens above it
	maxStreams     = 4        // reviews at a time on one connection of HTTP/2; an API server opens another connection
	maxReview      = 2 << 20  // bytes; etcd takes 1.5 MiB for an object
	smallReview    = 64 << 10 // bytes; nearly all pods are much smaller
	maxValues      = 20_000   // a pod has some hundred values; decoded, short ones take a hundred times their length
	receiveBuffer  = 64 << 10 // bytes that a connection of HTTP/2 may send ahead
	maxHeader      = 16 << 10
	maxReviews     = 8               // small reviews that are decoded at a time, plus one large; others wait
	readTimeout    = 5 * time.Second // for a whole request; later, the caller has given up
	writeTimeout   = 15 * time.Second
	idleTimeout    = 30 * time.Second // an idle API server connects again later
	// stopTimeout limits how long a stop waits for running reviews.
	stopTimeout = writeTimeout
	// maxLogged limits the logged part of a call's text.
	maxLogged = 1 << 10
)

// WebhookConfig is the configuration of a Webhook.
type WebhookConfig struct {
	// Listen is a host:port.
	Listen      string
	Certificate *certificate.Certificate
	Options     Options
	Logger      *slog.Logger
	// Metrics is a host:port for GET /metrics. Empty: none.
	Metrics string
	// Version is that of the program, for the metrics.
	Version string

	// readTimeout is longer in tests on slow machines. Zero means the default.
	readTimeout time.Duration
}

// Webhook serves a MutatingAdmissionWebhook: POST /mutate, and POST /mutate/node for pods that have the label WithNode from their
// namespace, which a review does not show. The selectors of its configuration in the cluster decide which pods are injected.
type Webhook struct {
	cfg      WebhookConfig
	log      *slog.Logger
	server   *http.Server
	listener *connections
	reviews  chan struct{} // has an element for each running small review
	large    chan struct{} // has an element for the running large review; decoded, it takes a hundred times its size
	serving  sync.WaitGroup

	metrics *metrics
	scrapes *http.Server // nil without metrics
	scraped string
}

// NewWebhook makes a webhook; Start makes it serve.
func NewWebhook(cfg WebhookConfig) *Webhook {
	w := &Webhook{
		cfg: cfg, log: cfg.Logger, reviews: make(chan struct{}, maxReviews), large: make(chan struct{}, 1),
		metrics: newMetrics(cfg.Certificate, cfg.Version),
	}
	patience := cmp.Or(cfg.readTimeout, readTimeout)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mutate", w.mutate(false))
	mux.HandleFunc("POST /mutate/node", w.mutate(true))
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprintln(rw, "well") })
	mux.HandleFunc("GET /readyz", w.ready)
	w.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: patience,
		ReadTimeout:       patience,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withConnection,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerConnection: receiveBuffer,
			MaxReceiveBufferPerStream:     receiveBuffer,
		},
		ErrorLog: stdlog.New(connectionLog{w.log, w.metrics.failed}, "", 0),
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS12,
			ClientAuth:     cfg.Certificate.ClientAuth(),
			GetCertificate: cfg.Certificate.ForClient,
		},
	}
	return w
}

// Start listens and serves. It returns errors of listening at once.
func (w *Webhook) Start(ctx context.Context) error {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", w.cfg.Listen)
	if err != nil {
		return err
	}
	w.listener = limitConnections(listener, maxConnections, w.log)
	if w.cfg.Metrics != "" {
		if err := w.startMetrics(ctx); err != nil {
			_ = listener.Close()
			return err
		}
	}
	w.serving.Go(func() {
		if err := w.server.ServeTLS(w.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("serving ended", "error", err)
		}
	})
	return nil
}

// Addr is the address of a started webhook.
func (w *Webhook) Addr() net.Addr { return w.listener.Addr() }

// MetricsAddr is the address of a started webhook's GET /metrics, empty if it has none.
func (w *Webhook) MetricsAddr() string { return w.scraped }

// Stop refuses connections, and waits for running reviews.
func (w *Webhook) Stop() {
	if w.scrapes != nil {
		_ = w.scrapes.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := w.server.Shutdown(ctx); err != nil {
		w.log.Warn("requests were still unanswered when the injector stopped", "error", err)
		_ = w.server.Close() // their time is over
	}
	w.serving.Wait()
}

func (w *Webhook) ready(rw http.ResponseWriter, _ *http.Request) {
	if err := w.cfg.Certificate.Valid(time.Now()); err != nil {
		w.log.Warn("not ready", "error", err)
		http.Error(rw, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(rw, "ready")
}

func (w *Webhook) mutate(node bool) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		began := time.Now()
		w.metrics.count(w.review(rw, r, node), began)
	}
}

// review answers a review, and returns its outcome.
func (w *Webhook) review(rw http.ResponseWriter, r *http.Request, node bool) (outcome string) {
	if err := w.cfg.Certificate.Authenticate(r.TLS); err != nil {
		w.log.Warn("call refused", "status", http.StatusUnauthorized, "error", cut(err.Error()))
		http.Error(rw, err.Error(), http.StatusUnauthorized)
		return outcomeUnauthorized
	}
	var body []byte
	var err error
	places := w.large
	small := r.ContentLength >= 0 && r.ContentLength <= smallReview
	if small { // its connection has a permit for that, so a slow sender does not block others
		places = w.reviews
		body, err = readBody(rw, r)
	}
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-r.Context().Done():
		http.Error(rw, "too many reviews at a time", http.StatusServiceUnavailable)
		return outcomeBusy
	}
	if !small {
		body, err = readBody(rw, r)
	}
	var in *request
	if err == nil {
		in, err = readReview(r.Header.Get("Content-Type"), body)
	}
	if refused, ok := errors.AsType[*refusedError](err); ok {
		w.log.Warn("call refused", "status", refused.status, "error", cut(refused.message))
		http.Error(rw, refused.message, refused.status)
		return outcomeBad
	}
	used(r.Context())
	out := in.answer(w.cfg.Options, node)
	w.note(in, out)
	rw.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(rw).Encode(review{APIVersion: reviewVersion, Kind: reviewKind, Response: &out}); err != nil {
		w.log.Warn("the API server did not get the answer", "uid", cut(in.UID), "error", err)
	}
	switch {
	case !out.Allowed:
		return outcomeRefused
	case out.Patch != nil:
		return outcomeInjected
	default:
		return outcomeUnchanged
	}
}

func (w *Webhook) note(in *request, out response) {
	log := w.log.With("namespace", cut(in.Namespace), "uid", cut(in.UID), "dry_run", in.DryRun)
	if in.Name != "" {
		log = log.With("name", cut(in.Name))
	} else if prefix, _ := objectIn(in.pod, "metadata")["generateName"].(string); prefix != "" {
		log = log.With("generate_name", cut(prefix))
	}
	switch {
	case !out.Allowed:
		log.Warn("pod refused", "reason", cut(out.Status.Message))
	case out.Patch != nil:
		log.Info("pod injected")
	default:
		log.Debug("nothing to inject", "kind", cut(in.Kind.Kind), "operation", cut(in.Operation))
	}
}

// cut shortens a logged text, between two runes.
func cut(text string) string {
	if len(text) <= maxLogged {
		return text
	}
	return strings.ToValidUTF8(text[:maxLogged], "")
}

// connectionLog has a line for each failed connection, such as that of an API server that does not trust the
// certificate. It omits clients that only check whether the port is open.
type connectionLog struct {
	*slog.Logger

	failed prometheus.Counter
}

// Write implements [io.Writer] for the lines of net/http.
func (l connectionLog) Write(line []byte) (int, error) {
	if text := strings.TrimSuffix(string(line), "\n"); !strings.HasSuffix(text, ": EOF") {
		l.failed.Inc()
		l.Warn("connection failed", "error", text)
	}
	return len(line), nil
}
