package cli

import (
	"io"
	"log/slog"
	"os"
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
		Long: `Run the sidecar until SIGTERM or SIGINT. The sidecar then refuses new locks and waits
until its sessions hold no locks, at most for LOCKSIDECAR_DRAIN_TIMEOUT; a second signal
ends this wait. Then it releases all locks and exits with 0. If the database needs a newer
locksidecar, it grants no more locks, and exits with 78 when its sessions hold none. SIGHUP
is ignored: a changed file of LOCKSIDECAR_STORE_URL_FILE needs no signal, other settings need
a restart.

Metrics are at GET /metrics. Traces and metrics are sent to a collector if the standard
OTEL_ variables configure one, such as OTEL_EXPORTER_OTLP_ENDPOINT.

The sidecar listens at --socket, or without it at LOCKSIDECAR_SOCKET. All other settings are variables:

` + config.Help(),
		Example: `  locksidecar serve --socket /tmp/ls.sock
  LOCKSIDECAR_STORE_URL=postgres://app@db:5432/app locksidecar serve

  # Behind PgBouncer in transaction mode, with a direct connection to listen
  LOCKSIDECAR_STORE_URL=postgres://app@pgbouncer:6432/app LOCKSIDECAR_POSTGRES_LISTEN_URL=postgres://app@db:5432/app locksidecar serve`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ignoreHangup()
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
			cfg, warnings, err := config.Load(withLogFor(cmd.ErrOrStderr(), source))
			if err != nil {
				return exitcode.With(exitcode.Config, err)
			}
			lines := newLog(cmd.ErrOrStderr(), cfg.LogLevel, cfg.LogFormat)
			defer lines.Stop()
			for _, warning := range warnings {
				slog.New(lines).Warn("the configuration may have a mistake", "reason", warning)
			}
			return sidecar.Run(s.stop, s.hurry, sidecar.Options{Config: cfg, Version: a.version, Log: lines, Lookup: a.source.Lookup})
		},
	}
}

// withLogFor lets a log that goes to a terminal be text, unless a variable says how it is written.
func withLogFor(out io.Writer, source config.Source) config.Source {
	format, _ := source.Lookup(config.Prefix + "LOG_FORMAT")
	if f, ok := out.(*os.File); ok && format == "" && isTerminal(f) {
		return source.With("LOG_FORMAT", string(config.LogText))
	}
	return source
}

// readable makes durations text, such as 13.997s. As JSON they would be numbers of nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	return a
}

// newLog makes the log of a serving process. The caller must call Stop at the end.
func newLog(out io.Writer, level slog.Level, format config.LogFormat) *logging.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	return logging.New(out, func(w io.Writer) slog.Handler {
		if format == config.LogText {
			return slog.NewTextHandler(w, options)
		}
		return slog.NewJSONHandler(w, options)
	})
}
