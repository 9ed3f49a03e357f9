//go:build !linux

package csi

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// Run fails: only Linux has the mounts of Kubernetes' nodes.
func Run(context.Context, Config) error {
	return exitcode.With(exitcode.Config, errors.New("locksidecar csi runs on Linux only"))
}
