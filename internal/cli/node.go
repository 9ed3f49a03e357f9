package cli

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/sidecar"
)

func (a *app) nodeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "node",
		Short: "Serve all pods of a node",
		Long: `Serve the pods of a node that have a volume of "locksidecar csi", until SIGTERM or SIGINT.
Each pod has a socket of its own, and sees the locks of its own namespace alone: that of
Kubernetes, unless LOCKSIDECAR_NODE_POLICY_FILE maps it. The locks of a pod end with it.

When another run has taken the sockets over, as in an update, SIGTERM lets this one serve the
sessions that hold locks until they hold none, at most for LOCKSIDECAR_DRAIN_TIMEOUT, here an
hour by default. If none does within 10 s, it stops as "serve" does. A run whose locks would be
in another database than those of a run that lives waits for the end of that one.

The settings are the variables of "locksidecar serve --help", without those of a socket, TCP,
the namespace and ALLOW_FORCE. Limits are those of each pod. One pod may have a quarter of the
connections that memory and descriptors allow for the node. docs/kubernetes.md has the rest.`,
		Example: `  LOCKSIDECAR_STORE_URL_FILE=/etc/locksidecar/store-url locksidecar node`,
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ignoreHangup()
			s, release := onSignals(cmd.Context())
			defer release()
			cfg, warnings, err := config.LoadNode(withLogFor(cmd.ErrOrStderr(), a.source))
			if err != nil {
				return exitcode.With(exitcode.Config, err)
			}
			lines := newLog(cmd.ErrOrStderr(), cfg.LogLevel, cfg.LogFormat)
			defer lines.Stop()
			for _, warning := range warnings {
				slog.New(lines).Warn("the configuration may have a mistake", "reason", warning)
			}
			return sidecar.RunNode(s.stop, s.hurry, sidecar.Options{Config: cfg, Version: a.version, Log: lines, Lookup: a.source.Lookup})
		},
	}
}
