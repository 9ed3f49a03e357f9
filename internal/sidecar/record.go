package sidecar

import (
	"log/slog"

	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/lease"
)

// record is the file beside the socket that names this instance until its leases are revoked. After a crash,
// the next sidecar at this socket revokes them.
type record struct {
	path, instance string
	locks          *lease.Manager
	log            *slog.Logger
	file           *instance.Record // nil until begin
}

// begin is called when only this process serves the socket, and it has no lease yet.
func (r *record) begin() error {
	file, predecessors, err := instance.Open(r.path, r.instance, r.log)
	if err != nil {
		return err
	}
	r.file = file
	if n := len(predecessors); n > 0 {
		r.log.Info("sidecars that ran here before did not stop cleanly; revoking their leases", "predecessors", n)
	}
	r.locks.ReapPredecessors(predecessors, file.Alone)
	return nil
}

// end is called when the manager has stopped, while this process still has the socket.
func (r *record) end() {
	if r.file != nil && r.locks.LeftNothing() {
		r.file.Remove()
	}
}
