package sidecar

import (
	"log/slog"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/store"
)

// OpenStore makes the store of a configuration, without a sidecar, and without traces and metrics. The caller starts and
// stops it.
func OpenStore(cfg config.Config, log *slog.Logger) (store.Store, error) {
	id, err := instance.New(cfg.Pod)
	if err != nil {
		return nil, err
	}
	s := &sidecar{Options: Options{Config: cfg}, instance: id, log: log, tel: &telemetry.Telemetry{Metrics: &metrics.Set{}}}
	return s.newStore(func(error) {})
}
