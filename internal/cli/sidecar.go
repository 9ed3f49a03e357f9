package cli

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy"
	"github.com/locksidecar/locksidecar/store"
)

// sidecar is the running parts, each of which needs the ones before it.
type sidecar struct {
	store store.Store
	locks *lease.Manager
	// succession begins when front has the socket, and ends while it still has it.
	succession *succession
	front      *proxy.Server
	// flush sends what is left of spans and figures.
	flush func()
	log   *slog.Logger
}

// start starts the parts in the order of their dependencies. When one fails,
// those before it are stopped again.
func (p sidecar) start(ctx context.Context) error {
	if err := p.store.Start(ctx); err != nil {
		p.store.Stop()
		return exitcode.With(exitcode.Config, fmt.Errorf("the store cannot work: %w", err))
	}
	if err := p.locks.Start(ctx); err != nil {
		p.locks.Stop()
		p.store.Stop()
		return err
	}
	if err := p.front.Start(ctx); err != nil {
		p.locks.Stop()
		p.store.Stop()
		return exitcode.With(exitcode.CannotOpen, err)
	}
	return nil
}

const (
	// readyPause is how often a store that is not ready at the start is looked
	// at, until it is. Ready asks nobody, so this costs nothing.
	readyPause = 20 * time.Millisecond
	// readyGrace is how long a store may take before the log says so.
	readyGrace = time.Second
)

// awaitReady says once that locks can be had, and when that takes a while, once
// before, why not yet.
func (p sidecar) awaitReady(stop context.Context) {
	tick := time.NewTicker(readyPause)
	defer tick.Stop()
	late := time.NewTimer(readyGrace)
	defer late.Stop()
	for {
		err := p.locks.Ready()
		if err == nil {
			p.log.Info("ready")
			return
		}
		select {
		case <-stop.Done():
			return
		case <-late.C:
			p.log.Warn("not ready yet", "error", err)
		case <-tick.C:
		}
	}
}

// outlive lets what is held be, when the database has outgrown this sidecar: there are no
// new locks, and it returns why when no session holds one any more, or nil when somebody
// asks for the stop.
func (p sidecar) outlive(stop context.Context, why error) error {
	p.log.Error("the database needs a newer locksidecar: no new locks here, and the end when no session holds one", "error", why)
	p.locks.Drain()
	select {
	case <-p.locks.Idle():
		return why
	case <-stop.Done():
		return nil
	}
}

// shutDown stops the sidecar. This is the one place that knows the order:
//
//  1. Not ready, no new locks, waiting calls end; releases still work.
//  2. Wait until no session holds a lock, at most for the drain timeout. The
//     connections stay open meanwhile: closing them would release their locks.
//  3. End all sessions, release what they hold, bury the leases. Locks with
//     bind:ttl stay.
//  4. Forget this run if it has left nothing to bury.
//  5. Close the connections and remove the socket.
//  6. Close the store.
//  7. Send the spans and figures that are left, the stop's own among them.
func (p sidecar) shutDown(s stopping, drainTimeout time.Duration) {
	p.log.Info("stopping", "reason", context.Cause(s.stop), "drain_timeout", drainTimeout.String())
	p.locks.Drain()
	p.awaitIdle(s.hurry, drainTimeout)
	p.locks.Stop()
	p.succession.end()
	p.front.Stop()
	p.store.Stop()
	p.flush()
	p.log.Info("stopped")
}

// flushLimit is how long the end of the process waits for a collector.
const flushLimit = 3 * time.Second

func flush(tel *telemetry.Telemetry, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), flushLimit)
	defer cancel()
	if err := tel.Stop(ctx); err != nil {
		log.Warn("not all spans and figures were delivered before the end", "error", err)
	}
}

func (p sidecar) awaitIdle(hurry context.Context, limit time.Duration) {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case <-p.locks.Idle():
	case <-timeout.C:
		p.log.Warn("sessions still hold locks after the drain timeout; releasing them")
	case <-hurry.Done():
		p.log.Warn("asked again to stop while sessions still hold locks; releasing them")
	}
}
