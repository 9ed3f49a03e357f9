package cli

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/csi"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

func (a *app) csiCommand() *cobra.Command {
	cfg := csi.Config{Version: a.version}
	var folder string
	cmd := &cobra.Command{
		Use:   "csi",
		Short: "Serve the kubelet: give each pod of a node a folder for its socket",
		Long: `Serve the kubelet as the volume plugin ` + csi.Driver + `, until SIGTERM or SIGINT. It is the
privileged half of node mode: it mounts a folder into each pod that has a volume of this
plugin, and describes there whose folder it is. "locksidecar node" makes the sockets. It must
be root, and see the kubelet's folder under its own path, with mounts that propagate
(mountPropagation: Bidirectional). Linux only. docs/kubernetes.md has the manifests.

The log is set by LOCKSIDECAR_LOG_LEVEL and LOCKSIDECAR_LOG_FORMAT.`,
		Example: `  locksidecar csi --node "$NODE_NAME"`,
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Folder = hostfolder.Folder(folder)
			for flag, path := range map[string]string{"--folder": folder, "--kubelet": cfg.Kubelet} {
				if !filepath.IsAbs(path) || filepath.Clean(path) != path {
					return usagef("%s is %q: it must be an absolute path", flag, path)
				}
			}
			if cfg.Node == "" {
				return usagef("--node is missing: it must be the node's name, or NODE_NAME must have it")
			}
			if os.Geteuid() != 0 {
				return exitcode.With(exitcode.Config, errors.New("locksidecar csi must be root, because it mounts folders"))
			}
			ignoreHangup()
			s, release := onSignals(cmd.Context())
			defer release()
			level, format, err := config.Logging(withLogFor(cmd.ErrOrStderr(), a.source))
			if err != nil {
				return exitcode.With(exitcode.Config, err)
			}
			lines := newLog(cmd.ErrOrStderr(), level, format)
			defer lines.Stop()
			cfg.Log = slog.New(lines)
			return csi.Run(s.stop, cfg)
		},
	}
	node, _ := a.source.Lookup("NODE_NAME")
	flags := cmd.Flags()
	flags.StringVar(&folder, "folder", hostfolder.Default, "the folder that it shares with `locksidecar node`; in memory, so that it is empty after a reboot")
	flags.StringVar(&cfg.Kubelet, "kubelet", "/var/lib/kubelet", "the kubelet's folder")
	flags.StringVar(&cfg.Node, "node", node, "the node's name (default $NODE_NAME)")
	flags.IntVar(&cfg.User, "user", hostfolder.User, "the user and group of `locksidecar node`")
	flags.DurationVar(&cfg.Patience, "patience", 10*time.Second, "how long a pod's start waits for its socket, before the kubelet shows the reason and tries again")
	return cmd
}
