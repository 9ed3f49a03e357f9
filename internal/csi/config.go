package csi

import (
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

// Driver is the name of the plugin, in CSIDriver objects and volumes.
const Driver = "csi.locksidecar.dev"

// Config configures the plugin.
type Config struct {
	// Folder is shared with `locksidecar node`. User is the user and group of that one.
	Folder hostfolder.Folder
	User   int
	// Kubelet is the kubelet's folder.
	Kubelet string
	// Node is the name of the node.
	Node string
	// Patience is how long a publish waits for the pod's socket.
	Patience time.Duration
	Version  string
	Log      *slog.Logger
}
