package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/inject"
	"github.com/locksidecar/locksidecar/internal/logging"
)

// webhook is what --webhook's flags say.
type webhook struct {
	listen, certificate, key string
	shutdownDelay            time.Duration
	options                  inject.Options
}

// addWebhook lets the command serve instead, when --webhook is given. The command has its
// RunE and its other flags.
func (a *app) addWebhook(cmd *cobra.Command) {
	var on bool
	var in webhook
	flags := cmd.Flags()
	flags.BoolVar(&on, "webhook", false, "serve the webhook of a cluster (POST /mutate) until SIGTERM, see deploy/injector/webhook.yaml")
	flags.StringVar(&in.listen, "listen", ":8443", "with --webhook: host:port to listen on, TLS only")
	flags.StringVar(&in.certificate, "certificate", "/etc/locksidecar/tls/tls.crt", "with --webhook: file with the certificate; a new one counts within a second")
	flags.StringVar(&in.key, "key", "/etc/locksidecar/tls/tls.key", "with --webhook: file with the certificate's key")
	flags.DurationVar(&in.shutdownDelay, "shutdown-delay", 5*time.Second, "with --webhook: go on serving so long after SIGTERM, until nobody is sent here any more")

	files := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !on {
			for _, name := range []string{"listen", "certificate", "key", "shutdown-delay"} {
				if cmd.Flags().Changed(name) {
					return usagef("--%s is for --webhook", name)
				}
			}
			return files(cmd, args)
		}
		if err := in.check(cmd); err != nil {
			return err
		}
		return a.serveWebhook(cmd, in)
	}
}

// check reads the flags that the command has anyway.
func (in *webhook) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("filename") {
		return usagef("--webhook is asked for pods by a cluster, --filename has them: use one of them")
	}
	if _, port, err := net.SplitHostPort(in.listen); err != nil || port == "" {
		return usagef("--listen %q: it must be host:port, such as :8443", in.listen)
	}
	if in.shutdownDelay < 0 {
		return usagef("--shutdown-delay %s: it must not be negative", in.shutdownDelay)
	}
	image, err := cmd.Flags().GetString("image")
	secret, err2 := cmd.Flags().GetString("secret")
	env, err3 := cmd.Flags().GetStringArray("env")
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	in.options = inject.Options{Image: image, Secret: secret}
	for _, v := range env {
		name, value, ok := strings.Cut(v, "=")
		if !ok {
			return usagef("--env %q: it must be NAME=VALUE", v)
		}
		in.options.Env = append(in.options.Env, inject.Variable{Name: name, Value: value})
	}
	return nil
}

func (a *app) serveWebhook(cmd *cobra.Command, in webhook) error {
	s, release := onSignals(cmd.Context())
	defer release()
	level, format, err := config.Logging(a.source)
	if err != nil {
		return because(exitConfig, err)
	}
	log := newLogger(cmd.ErrOrStderr(), config.Config{LogLevel: level, LogFormat: format})
	return in.serve(s, log)
}

// serve serves until it is asked to stop, and goes on a while: whoever routes to this
// process learns of its end at the same time as it does.
func (in *webhook) serve(s stopping, log *slog.Logger) error {
	limited := logging.New(log.Handler())
	defer limited.Stop()
	log = slog.New(limited)
	certificate, err := inject.LoadCertificate(in.certificate, in.key, log)
	if err != nil {
		return because(exitConfig, err)
	}
	server := inject.NewWebhook(inject.WebhookConfig{
		Listen: in.listen, Certificate: certificate, Options: in.options, Logger: log,
	})
	if err := server.Start(s.stop); err != nil {
		if s.stop.Err() != nil {
			return nil // whoever asked for the stop got it
		}
		return because(exitCannotOpen, err)
	}
	log.Info("the injector serves", "version", buildVersion(), "address", server.Addr().String(),
		"image", in.options.Image, "secret", in.options.Secret)
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
