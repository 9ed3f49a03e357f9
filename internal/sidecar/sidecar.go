// Package sidecar implements the commands `serve` and `node`: it builds the parts of a sidecar, or of the lock server of a node, and stops them.
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
	// Version is the version of this program.
	Version string
	// Log receives the log lines. The caller stops it after Run.
	Log *logging.Handler
	// Lookup finds the variables of OpenTelemetry, and GOGC.
	Lookup func(name string) (string, bool)
}

// sidecar contains the running parts. Each part needs the previous ones.
type sidecar struct {
	Options

	instance string
	log      *slog.Logger
	tel      *telemetry.Telemetry
	flush    func() // sends the remaining spans and metrics, once
	space    store.Space
	store    store.Store // the space's only view
	locks    *lease.Manager
	record   *record
	front    *proxy.Server
}

// Run builds the sidecar in the order of its dependencies, serves until ctx ends, and stops. The cause of ctx
// is the reason. A stop during the start is not an error. The end of hurry ends the wait for held locks. An
// error has an exit code if its cause is known.
func Run(ctx, hurry context.Context, o Options) error {
	id, err := instance.New(o.Config.Pod, o.Version)
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
	encrypted, authorized, err := s.overTCP()
	if err != nil {
		return exitcode.With(exitcode.Config, err)
	}
	if s.space, err = NewSpace(o.Config, SpaceOptions{Log: s.log, Telemetry: s.tel, TooOld: tooOld}); err != nil {
		return exitcode.With(exitcode.Config, err)
	}
	s.store = s.space.View(store.Identity{Namespace: o.Config.Namespace, Instance: id, Pod: o.Config.Pod})
	if s.locks, err = lease.New(s.leaseConfig(), s.store); err != nil {
		return err
	}
	s.record = &record{path: o.Config.Socket + ".instance", instance: id, locks: s.locks, log: s.log}
	s.front = proxy.New(s.proxyConfig(encrypted, authorized))

	keepHeapFloor(o.Lookup)
	if err := s.start(ctx); err != nil {
		if ctx.Err() != nil {
			s.log.Info("stopped before the start was complete", "reason", context.Cause(ctx))
			return nil
		}
		return err
	}
	s.awaitReady(serving)
	<-serving.Done()
	reason := context.Cause(serving)
	var outgrown error
	if ctx.Err() == nil { // the stop was not requested
		outgrown = s.outlive(ctx, fmt.Errorf("%s: %w", o.Version, reason))
	}
	s.stop(hurry, reason)
	return exitcode.With(exitcode.Config, outgrown)
}

// start starts the parts in order. If one fails, it stops all.
func (s *sidecar) start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			s.locks.Stop()
			s.store.Stop()
			s.space.Stop()
		}
	}()
	err = s.space.Start(ctx)
	if err == nil {
		err = s.store.Start(ctx, s.locks.News)
	}
	if err != nil {
		return exitcode.With(exitcode.Config, fmt.Errorf("the store cannot work: %w", err))
	}
	if err := s.locks.Start(ctx); err != nil {
		return err
	}
	return exitcode.With(exitcode.CannotOpen, s.front.Start(ctx))
}

const (
	// readyPause is the pause between checks of a store that is not ready. Ready sends no statement.
	readyPause = 20 * time.Millisecond
	// readyGrace is after what time an unready store is logged.
	readyGrace = time.Second
)

// awaitReady logs once that the sidecar is ready, and after readyGrace once why it is not yet.
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

// outlive is called when the database needs a newer sidecar: sessions get no new locks, and keep theirs. It
// returns why when sessions hold no locks any more, or nil when the stop is requested.
func (s *sidecar) outlive(ctx context.Context, why error) error {
	s.log.Error("the database needs a newer locksidecar: this one grants no new locks, and exits when its sessions hold none", "error", why)
	s.locks.Drain()
	select {
	case <-s.locks.Idle():
		return why
	case <-ctx.Done():
		return nil
	}
}

// stop stops the sidecar. Only this function defines the order:
//
//  1. Not ready, no new locks, waiting calls end; releases still work.
//  2. Wait until sessions hold no locks, at most for the drain timeout. The connections stay open meanwhile,
//     because closing them would release their locks.
//  3. End all sessions, release their locks, revoke the leases. Locks with bind:ttl stay.
//  4. Remove the record of this run if all leases are revoked.
//  5. Close the connections and remove the socket.
//  6. Close the store.
//  7. Send the remaining spans and metrics, including those of the stop.
func (s *sidecar) stop(hurry context.Context, reason error) {
	s.log.Info("stopping", "reason", reason, "drain_timeout", s.Config.DrainTimeout.String())
	s.locks.Drain()
	s.awaitIdle(hurry)
	s.locks.Stop()
	s.record.end()
	s.front.Stop()
	s.store.Stop()
	s.space.Stop()
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
		s.log.Warn("second request to stop while sessions still hold locks; releasing them")
	}
}

// flushLimit limits how long the end of the process waits for a collector.
const flushLimit = 3 * time.Second

func (s *sidecar) sendRest() { sendRest(s.tel, s.log) }

func sendRest(tel *telemetry.Telemetry, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), flushLimit)
	defer cancel()
	if err := tel.Stop(ctx); err != nil {
		log.Warn("not all spans and metrics were delivered before the end", "error", err)
	}
}

// record is the file beside the socket that names this instance until its leases are revoked. After a crash,
// the next sidecar at this socket revokes them.
type record struct {
	path, instance string
	locks          *lease.Manager
	log            *slog.Logger
	file           *instance.Record // nil until begin
}

// begin is called when only this process serves the socket, and it has no lease yet.
func (r *record) begin() {
	file, predecessors := instance.Open(r.path, r.instance, r.log)
	r.file = file
	if n := len(predecessors); n > 0 {
		r.log.Info("sidecars that ran here before did not stop cleanly; revoking their leases", "predecessors", n)
	}
	r.locks.ReapPredecessors(predecessors, file.Alone)
}

// end is called when the manager has stopped, while this process still has the socket.
func (r *record) end() {
	if r.file != nil && r.locks.LeftNothing() {
		r.file.Remove()
	}
}
