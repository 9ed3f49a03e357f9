package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
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
		Short: "Run the sidecar",
		Long: `Run the sidecar until SIGTERM or SIGINT. It then refuses new locks, waits until
no session holds one (at most LOCKSIDECAR_DRAIN_TIMEOUT; a second signal ends
that wait), releases all, and exits with 0. When the database needs a newer
locksidecar it grants nothing more, and exits with 78 when no session holds a lock.

Figures are at GET /metrics. Traces and figures go to a collector when the standard
OTEL_ variables say so, such as OTEL_EXPORTER_OTLP_ENDPOINT.

It listens at --socket, else at LOCKSIDECAR_SOCKET. All other settings are variables.`,
		Example: `  locksidecar serve --socket /tmp/ls.sock
  LOCKSIDECAR_STORE_URL=postgres://app@db:5432/app locksidecar serve

  # Behind PgBouncer in transaction mode, with a direct connection to listen
  LOCKSIDECAR_STORE_URL=postgres://app@pgbouncer:6432/app LOCKSIDECAR_POSTGRES_LISTEN_URL=postgres://app@db:5432/app locksidecar serve`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, release := onSignals(cmd.Context())
			defer release()
			source := a.source
			if a.socket != "" {
				path, err := filepath.Abs(a.socket)
				if err != nil {
					return err
				}
				source = source.With("SOCKET", path)
			}
			cfg, warnings, err := config.Load(s.stop, source)
			if err != nil {
				return exitcode.With(exitcode.Config, err)
			}
			lines := newLog(cmd.ErrOrStderr(), cfg.LogLevel, cfg.LogFormat)
			defer lines.Stop()
			for _, warning := range warnings {
				slog.New(lines).Warn("the configuration may not be what was wanted", "reason", warning)
			}
			return run(s, cfg, lines, a.version, a.lookup)
		},
	}
}

// newLog is the log of a process that serves. At the end, Stop it.
func newLog(out io.Writer, level slog.Level, format config.LogFormat) *logging.Handler {
	options := &slog.HandlerOptions{Level: level}
	return logging.New(out, func(w io.Writer) slog.Handler {
		if format == config.LogText {
			return slog.NewTextHandler(w, options)
		}
		return slog.NewJSONHandler(w, options)
	})
}

// run builds the sidecar in the order of its dependencies, serves until it is
// asked to stop, and stops. Being asked to stop while it starts is no error. lookup
// finds the variables of OpenTelemetry, and GOGC.
func run(s stopping, cfg config.Config, lines *logging.Handler, version string, lookup func(string) (string, bool)) error {
	log := slog.New(lines)
	id, err := instance.New(cfg.Pod)
	if err != nil {
		return err
	}
	log.Info("locksidecar starts", "version", version, "socket", cfg.Socket,
		"store", cfg.Store, "namespace", cfg.Namespace, "instance", id)
	if cfg.ListenURL.Kind != "" {
		log.Info("notifications of other instances have a URL of their own", "listen", cfg.ListenURL)
	}

	tel, err := telemetry.Start(s.stop, telemetryOptions(cfg, id, version, log, lookup))
	if err != nil {
		return err
	}
	flush := sync.OnceFunc(func() { flush(tel, log) })
	defer flush()
	tel.Metrics.ObserveLog(lines.Dropped)

	tooOld, tellTooOld := context.WithCancelCause(s.stop)
	defer tellTooOld(nil)
	st, err := newStore(cfg, store.Identity{Namespace: cfg.Namespace, Instance: id, Pod: cfg.Pod}, tel, tellTooOld, log)
	if err != nil {
		return exitcode.With(exitcode.Config, err)
	}
	locks, err := lease.New(leaseConfig(cfg, id, tel, log), st)
	if err != nil {
		return err
	}
	succession := &succession{path: cfg.Socket + ".instance", instance: id, locks: locks, log: log}
	front := proxy.New(proxyConfig(cfg, version, locks, succession, tel, log))

	keepHeapFloor(lookup)
	parts := sidecar{store: st, locks: locks, succession: succession, front: front, flush: flush, log: log}
	if err := parts.start(s.stop); err != nil {
		if s.stop.Err() != nil {
			log.Info("stopped while it started", "reason", context.Cause(s.stop))
			return nil // whoever asked for the stop got it
		}
		return err
	}
	parts.awaitReady(tooOld)
	<-tooOld.Done()
	var why error
	if s.stop.Err() == nil { // nobody has asked for it
		why = parts.outlive(s.stop, fmt.Errorf("%s: %w", version, context.Cause(tooOld)))
	}
	parts.shutDown(stopping{stop: tooOld, hurry: s.hurry}, cfg.DrainTimeout)
	return exitcode.With(exitcode.Config, why)
}

func telemetryOptions(cfg config.Config, id, version string, log *slog.Logger, lookup func(string) (string, bool)) telemetry.Options {
	return telemetry.Options{
		Lookup: lookup, Version: version, Instance: id, Pod: cfg.Pod, Namespace: cfg.Namespace,
		MaxLinks: cfg.BatchMax, Logger: log,
	}
}

func newStore(cfg config.Config, id store.Identity, tel *telemetry.Telemetry, tooOld func(error), log *slog.Logger) (store.Store, error) {
	if cfg.Store.Kind == config.Memory {
		return memory.NewSpace().Open(id), nil
	}
	return postgres.New(postgres.Config{
		URL: cfg.Store.Reveal(), Again: cfg.Store.Again, Identity: id, MaxConns: cfg.PoolMaxConns,
		Timeout: cfg.StoreTimeout, AutoMigrate: cfg.AutoMigrate, TooOld: tooOld, Logger: log,
		Listen: postgres.Listen(cfg.Listen), ListenURL: cfg.ListenURL.Reveal(), ListenAgain: cfg.ListenURL.Again,
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

func proxyConfig(cfg config.Config, version string, locks *lease.Manager, succession *succession, tel *telemetry.Telemetry, log *slog.Logger) proxy.Config {
	return proxy.Config{
		Locks: proxy.FromManager(locks), Logger: log, Version: version,
		Claimed: succession.begin, Namespace: cfg.Namespace,
		TTL: cfg.TTL, AllowForce: cfg.AllowForce,
		Tracer: tel.Tracer, Metrics: tel.Metrics.Calls, MetricsHandler: tel.Figures,
		Socket: cfg.Socket, SocketMode: cfg.SocketMode, AllowedUIDs: cfg.AllowedUIDs,
		TCPAddr: cfg.TCPAddr, AdminAddr: cfg.AdminAddr,
		MaxSessions: cfg.MaxSessions, MaxConns: maxConns(cfg, log), MaxBody: cfg.MaxBody,
	}
}
