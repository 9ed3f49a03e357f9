package conn

import "log/slog"

// Peer is the process at the other end of a Unix socket.
type Peer struct {
	Known bool
	UID   uint32
	PID   int32
}

// LogValue shows the process, or "unknown".
func (p Peer) LogValue() slog.Value {
	if !p.Known {
		return slog.StringValue("unknown")
	}
	return slog.GroupValue(slog.Int64("pid", int64(p.PID)), slog.Int64("uid", int64(p.UID)))
}
