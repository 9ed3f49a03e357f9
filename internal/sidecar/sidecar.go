// Package sidecar is the command `serve`: it puts the parts of a sidecar together, and takes
// them apart.
package sidecar

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/internal/logging"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy"
	"github.com/locksidecar/locksidecar/store"
)

// Options are what Run needs.
type Options struct {
	Config config.Config
	// Version is that of this program.
	Version string
	// Log takes the log lines. Its maker stops it after Run.
	Log *logging.Handler
	// Lookup finds the variables of OpenTelemetry, and GOGC.
	Lookup func(name string) (string, bool)
}

// sidecar is the running parts, each of which needs the ones before it.
type sidecar struct {
	Options

	instance string
	log      *slog.Logger
	tel      *telemetry.Telemetry
	flush    func() // sends the spans and metrics that are left, once
	store    store.Store
	locks    *lease.Manager
	record   *record
	front    *proxy.Server
}

// Run builds the sidecar in the order of its dependencies, serves until ctx ends, and stops. The cause
// of ctx says why; a stop during the start is no error. The end of hurry ends the wait for held locks.
// An error has an exit code if its cause is known.
func Run(ctx, hurry context.Context, o Options) error {
	id, err := instance.New(o.Config.Pod)
	if err != nil {
		return err
	}
	s := &sidecar{Options: o, instance: id, log: slog.New(o.Log)}
	s.log.Info("locksidecar starts", "version", o.Version, "socket", o.Config.Socket,
		"store", o.Config.Store, "namespace", o.Config.Namespace, "instance", id)
	if o.Config.ListenURL.Kind != "" {
		s.log.Info("listening for notifications through a URL of its own", "listen", o.Config.ListenURL)
	}

	s.tel = telemetry.Start(ctx, s.telemetryOptions())
	s.flush = sync.OnceFunc(s.sendRest)
	defer s.flush()
	s.tel.Metrics.ObserveLog(o.Log.Dropped)

	serving, tooOld := context.WithCancelCause(ctx)
	defer tooOld(nil)
	if s.store, err = s.newStore(tooOld); err != nil {
		return exitcode.With(exitcode.Config, err)
	}
	if s.locks, err = lease.New(s.leaseConfig(), s.store); err != nil {
		return err
	}
	s.record = &record{path: o.Config.Socket + ".instance", instance: id, locks: s.locks, log: s.log}
	s.front = proxy.New(s.proxyConfig())

	keepHeapFloor(o.Lookup)
	if err := s.start(ctx); err != nil {
		if ctx.Err() != nil {
			s.log.Info("stopped while it started", "reason", context.Cause(ctx))
			return nil
		}
		return err
	}
	s.awaitReady(serving)
	<-serving.Done()
	reason := context.Cause(serving)
	var outgrown error
	if ctx.Err() == nil { // nobody has asked for the stop
		outgrown = s.outlive(ctx, fmt.Errorf("%s: %w", o.Version, reason))
	}
	s.stop(hurry, reason)
	return exitcode.With(exitcode.Config, outgrown)
}

// start starts the parts in order. If one fails, start stops all.
func (s *sidecar) start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			s.locks.Stop()
			s.store.Stop()
		}
	}()
	if err := s.store.Start(ctx, s.locks.News); err != nil {
		return exitcode.With(exitcode.Config, fmt.Errorf("the store cannot work: %w", err))
	}
	if err := s.locks.Start(ctx); err != nil {
		return err
	}
	return exitcode.With(exitcode.CannotOpen, s.front.Start(ctx))
}

const (
	// readyPause is the pause between looks at a store that is not ready. Ready asks nobody.
	readyPause = 20 * time.Millisecond
	// readyGrace is how long a store may take before the log says so.
	readyGrace = time.Second
)

// awaitReady logs once that locks can be had, and after readyGrace once why not yet.
func (s *sidecar) awaitReady(serving context.Context) {
	tick := time.NewTicker(readyPause)
	defer tick.Stop()
	late := time.NewTimer(readyGrace)
	defer late.Stop()
	for {
		err := s.locks.Ready()
		if err == nil {
			s.log.Info("ready")
			return
		}
		select {
		case <-serving.Done():
			return
		case <-late.C:
			s.log.Warn("not ready yet", "error", err)
		case <-tick.C:
		}
	}
}

// outlive is called when the database has outgrown this sidecar: no new locks, sessions keep theirs. It
// returns why when no session holds a lock any more, or nil when somebody asks for the stop.
func (s *sidecar) outlive(ctx context.Context, why error) error {
	s.log.Error("the database needs a newer locksidecar: no new locks here, and the end when no session holds one", "error", why)
	s.locks.Drain()
	select {
	case <-s.locks.Idle():
		return why
	case <-ctx.Done():
		return nil
	}
}

// stop stops the sidecar. This is the one place that knows the order:
//
//  1. Not ready, no new locks, waiting calls end; releases still work.
//  2. Wait until no session holds a lock, at most for the drain timeout. The
//     connections stay open meanwhile: closing them would release their locks.
//  3. End all sessions, release what they hold, revoke the leases. Locks with
//     bind:ttl stay.
//  4. Remove the record of this run if no lease is left to revoke.
//  5. Close the connections and remove the socket.
//  6. Close the store.
//  7. Send the spans and metrics that are left, the stop's own among them.
func (s *sidecar) stop(hurry context.Context, reason error) {
	s.log.Info("stopping", "reason", reason, "drain_timeout", s.Config.DrainTimeout.String())
	s.locks.Drain()
	s.awaitIdle(hurry)
	s.locks.Stop()
	s.record.end()
	s.front.Stop()
	s.store.Stop()
	s.flush()
	s.log.Info("stopped")
}

func (s *sidecar) awaitIdle(hurry context.Context) {
	timeout := time.NewTimer(s.Config.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-s.locks.Idle():
	case <-timeout.C:
		s.log.Warn("sessions still hold locks after the drain timeout; releasing them")
	case <-hurry.Done():
		s.log.Warn("asked again to stop while sessions still hold locks; releasing them")
	}
}

// flushLimit is how long the end of the process waits for a collector.
const flushLimit = 3 * time.Second

func (s *sidecar) sendRest() {
	ctx, cancel := context.WithTimeout(context.Background(), flushLimit)
	defer cancel()
	if err := s.tel.Stop(ctx); err != nil {
		s.log.Warn("not all spans and metrics were delivered before the end", "error", err)
	}
}
