package main

import (
	"context"
	"io"
	"log/slog"
	"sync"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/internal/logging"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
	"github.com/locksidecar/locksidecar/store/postgres"
)

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the sidecar (what happens without a command, too)",
		Long: `Run the sidecar until SIGTERM or SIGINT. It then refuses new locks, waits until
no session holds one (at most LOCKSIDECAR_DRAIN_TIMEOUT; a second signal ends
that wait), releases all, and exits with 0.

Figures are at GET /metrics. Traces and figures go to a collector when the standard
OTEL_ variables say so, such as OTEL_EXPORTER_OTLP_ENDPOINT.`,
		Example: `  LOCKSIDECAR_SOCKET=/tmp/ls.sock locksidecar serve
  LOCKSIDECAR_STORE_URL=postgres://app@db:5432/app locksidecar serve`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, release := onSignals(cmd.Context())
			defer release()
			cfg, warnings, err := config.Load(s.stop, a.source)
			if err != nil {
				return because(exitConfig, err)
			}
			log := newLogger(cmd.ErrOrStderr(), cfg)
			for _, warning := range warnings {
				log.Warn("part of the configuration is ignored", "reason", warning)
			}
			return run(s, cfg, log, a.lookup)
		},
	}
}

func newLogger(w io.Writer, cfg config.Config) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.LogLevel}
	if cfg.LogFormat == config.LogText {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// run builds the sidecar in the order of its dependencies, serves until it is
// asked to stop, and stops. Being asked to stop while it starts is no error. lookup
// finds the variables of OpenTelemetry, and GOGC.
func run(s stopping, cfg config.Config, log *slog.Logger, lookup func(string) (string, bool)) error {
	limited := logging.New(log.Handler())
	defer limited.Stop()
	log = slog.New(limited)
	id, err := instance.New(cfg.Pod)
	if err != nil {
		return err
	}
	log.Info("locksidecar starts", "version", buildVersion(), "socket", cfg.Socket,
		"store", cfg.Store, "namespace", cfg.Namespace, "instance", id)

	tel, err := telemetry.Start(s.stop, telemetryOptions(cfg, id, log, lookup))
	if err != nil {
		return because(exitConfig, err)
	}
	flush := sync.OnceFunc(func() { flush(tel, log) })
	defer flush()
	tel.Metrics.ObserveLog(limited.Dropped)

	st, err := newStore(cfg, store.Identity{Namespace: cfg.Namespace, Instance: id, Pod: cfg.Pod}, tel, log)
	if err != nil {
		return because(exitConfig, err)
	}
	locks, err := lease.New(leaseConfig(cfg, id, tel, log), st)
	if err != nil {
		return err
	}
	succession := &succession{path: cfg.Socket + ".instance", instance: id, locks: locks, log: log}
	front := proxy.New(proxyConfig(cfg, locks, succession, tel, log))

	keepHeapFloor(lookup)
	parts := sidecar{store: st, locks: locks, succession: succession, front: front, flush: flush, log: log}
	if err := parts.start(s.stop); err != nil {
		if s.stop.Err() != nil {
			log.Info("stopped while it started", "reason", context.Cause(s.stop))
			return nil // whoever asked for the stop got it
		}
		return err
	}
	parts.awaitReady(s.stop)
	<-s.stop.Done()
	parts.shutDown(s, cfg.DrainTimeout)
	return nil
}

func telemetryOptions(cfg config.Config, id string, log *slog.Logger, lookup func(string) (string, bool)) telemetry.Options {
	return telemetry.Options{
		Lookup: lookup, Version: buildVersion(), Instance: id, Pod: cfg.Pod, Namespace: cfg.Namespace,
		MaxLinks: cfg.BatchMax, Logger: log,
	}
}

func newStore(cfg config.Config, id store.Identity, tel *telemetry.Telemetry, log *slog.Logger) (store.Store, error) {
	if cfg.Store.Kind == config.Memory {
		return memory.NewSpace().Open(id), nil
	}
	return postgres.New(postgres.Config{
		URL: cfg.Store.Reveal(), Identity: id, MaxConns: cfg.PoolMaxConns,
		Timeout: cfg.StoreTimeout, AutoMigrate: cfg.AutoMigrate, Logger: log,
		Listen:  postgres.Listen(cfg.Listen),
		Tracers: tel.Tracers, Metrics: tel.Metrics.Store,
	})
}

func leaseConfig(cfg config.Config, id string, tel *telemetry.Telemetry, log *slog.Logger) lease.Config {
	return lease.Config{
		Instance: id, Pod: cfg.Pod,
		TTL: cfg.TTL, RenewInterval: cfg.RenewInterval,
		StoreTimeout: cfg.StoreTimeout, PollInterval: cfg.PollInterval,
		CacheSize: cfg.CacheSize, CacheTTL: cfg.CacheTTL, BatchMax: cfg.BatchMax,
		MaxSessions: cfg.MaxSessions, MaxLocksPerSession: cfg.MaxLocksPerSession, MaxWaiters: cfg.MaxWaiters,
		Logger: log, Tracer: tel.Tracer, Metrics: tel.Metrics.Locks,
	}
}

func proxyConfig(cfg config.Config, locks *lease.Manager, succession *succession, tel *telemetry.Telemetry, log *slog.Logger) proxy.Config {
	return proxy.Config{
		Locks: proxy.FromManager(locks), Logger: log, Version: buildVersion(),
		Claimed: succession.begin, Namespace: cfg.Namespace,
		TTL: cfg.TTL, AllowForce: cfg.AllowForce,
		Tracer: tel.Tracer, Metrics: tel.Metrics.Calls, Figures: tel.Figures,
		Socket: cfg.Socket, SocketMode: cfg.SocketMode, AllowedUIDs: cfg.AllowedUIDs,
		TCPAddr: cfg.TCPAddr, AdminAddr: cfg.AdminAddr,
		// Each session and each waiting call may need a connection of its own.
		MaxSessions: cfg.MaxSessions, MaxConns: 4*cfg.MaxSessions + cfg.MaxWaiters, MaxBody: cfg.MaxBody,
	}
}
