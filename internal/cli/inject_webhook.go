package cli

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/certificate"
	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/inject"
)

type webhook struct {
	on                       bool
	listen, certificate, key string
	metrics                  string
	clientCA                 string
	shutdownDelay            time.Duration
}

// addWebhook adds the flags of the webhook server.
func addWebhook(cmd *cobra.Command) *webhook {
	in := &webhook{}
	flags := cmd.Flags()
	flags.BoolVar(&in.on, "webhook", false, "serve the webhook of a cluster (POST /mutate) until SIGTERM, see deploy/injector/webhook.yaml")
	flags.StringVar(&in.listen, "listen", ":8443", "with --webhook: host:port to listen on, TLS only")
	flags.StringVar(&in.metrics, "metrics", ":15624", "with --webhook: host:port of GET /metrics, without TLS; empty: none")
	flags.StringVar(&in.certificate, "certificate", "/etc/locksidecar/tls/tls.crt", "with --webhook: file with the certificate; a changed file is used within a second")
	flags.StringVar(&in.key, "key", "/etc/locksidecar/tls/tls.key", "with --webhook: file with the certificate's key")
	flags.StringVar(&in.clientCA, "client-ca", "", "with --webhook: file with the CA of the API servers' client certificates; without it, every client may call")
	flags.DurationVar(&in.shutdownDelay, "shutdown-delay", 5*time.Second, "with --webhook: how long to continue serving after SIGTERM, until the cluster sends no more requests here")
	return in
}

func (in *webhook) check() error {
	for name, address := range map[string]string{"listen": in.listen, "metrics": in.metrics} {
		if _, port, err := net.SplitHostPort(address); (err != nil || port == "") && (name != "metrics" || address != "") {
			return usagef("--%s %q: it must be host:port, such as :8443", name, address)
		}
	}
	if in.shutdownDelay < 0 {
		return usagef("--shutdown-delay %s: it must not be negative", in.shutdownDelay)
	}
	return nil
}

func (a *app) serveWebhook(cmd *cobra.Command, in *webhook, o inject.Options) error {
	ignoreHangup()
	s, release := onSignals(cmd.Context())
	defer release()
	level, format, err := config.Logging(a.source)
	if err != nil {
		return exitcode.With(exitcode.Config, err)
	}
	lines := newLog(cmd.ErrOrStderr(), level, format)
	defer lines.Stop()
	return in.serve(s, o, a.version, slog.New(lines))
}

// serve continues for shutdownDelay after the stop, because the cluster still sends requests.
func (in *webhook) serve(s stopping, o inject.Options, version string, log *slog.Logger) error {
	loaded, err := certificate.Load(certificate.Files{Cert: in.certificate, Key: in.key, ClientCA: in.clientCA}, log)
	if err != nil {
		return exitcode.With(exitcode.Config, err)
	}
	server := inject.NewWebhook(inject.WebhookConfig{
		Listen: in.listen, Certificate: loaded, Options: o, Logger: log,
		Metrics: in.metrics, Version: version,
	})
	if err := server.Start(s.stop); err != nil {
		if s.stop.Err() != nil {
			return nil //nolint:nilerr // it was asked to stop, so this is not a failure
		}
		return exitcode.With(exitcode.CannotOpen, err)
	}
	log.Info("the injector serves", "version", version, "address", server.Addr().String(),
		"metrics", server.MetricsAddr(),
		"image", o.Image, "secret", o.Secret)
	<-s.stop.Done()
	log.Info("stopping", "reason", context.Cause(s.stop), "shutdown_delay", in.shutdownDelay.String())
	select {
	case <-time.After(in.shutdownDelay):
	case <-s.hurry.Done():
	}
	server.Stop()
	log.Info("stopped")
	return nil
}
