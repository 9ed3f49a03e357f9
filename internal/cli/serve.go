package cli

import (
	"io"
	"log/slog"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/logging"
	"github.com/locksidecar/locksidecar/internal/sidecar"
)

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the sidecar",
		Long: `Run the sidecar until SIGTERM or SIGINT. It then refuses new locks, waits until
no session holds one (at most LOCKSIDECAR_DRAIN_TIMEOUT; a second signal ends
that wait), releases all, and exits with 0. When the database needs a newer
locksidecar it grants nothing more, and exits with 78 when no session holds a lock.

Metrics are at GET /metrics. Traces and metrics go to a collector when the standard
OTEL_ variables say so, such as OTEL_EXPORTER_OTLP_ENDPOINT.

It listens at --socket, else at LOCKSIDECAR_SOCKET. All other settings are variables:

` + config.Help(),
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
			cfg, warnings, err := config.Load(source)
			if err != nil {
				return exitcode.With(exitcode.Config, err)
			}
			lines := newLog(cmd.ErrOrStderr(), cfg.LogLevel, cfg.LogFormat)
			defer lines.Stop()
			for _, warning := range warnings {
				slog.New(lines).Warn("the configuration may not be what was wanted", "reason", warning)
			}
			return sidecar.Run(s.stop, s.hurry, sidecar.Options{Config: cfg, Version: a.version, Log: lines, Lookup: a.source.Lookup})
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
