package mysql

import "context"

// SweepOnce sweeps as the backend does from time to time.
func (b *Backend) SweepOnce(ctx context.Context) error { return b.sweepOnce(ctx) }

// Version is the check of a server's version. Explain and Suspicious judge an error of a server.
var (
	Version    = version
	Explain    = explain
	Suspicious = suspicious
)
