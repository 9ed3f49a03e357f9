package cli

import (
	"log/slog"

	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/lease"
)

// succession sees to it that what a sidecar leaves on a socket is buried by the
// next one there.
type succession struct {
	path, instance string
	locks          *lease.Manager
	log            *slog.Logger
	record         *instance.Record // nil until begin
}

// begin is called when this process alone serves the socket, and has no lease yet.
func (s *succession) begin() error {
	record, predecessors, err := instance.Open(s.path, s.instance, s.log)
	if err != nil {
		return err
	}
	s.record = record
	if n := len(predecessors); n > 0 {
		s.log.Info("sidecars that ran here before did not stop cleanly; burying their leases", "predecessors", n)
	}
	s.locks.ReapPredecessors(predecessors, record.Alone)
	return nil
}

// end is called when the manager has stopped, and while the socket is still ours.
func (s *succession) end() {
	if s.record != nil && s.locks.LeftNothing() {
		s.record.Remove()
	}
}
