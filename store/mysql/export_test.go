package mysql

import (
	"context"
	"time"
)

// SweepOnce sweeps as the backend does from time to time.
func (b *Backend) SweepOnce(ctx context.Context) error { return b.sweepOnce(ctx) }

// Version is the check of a server's version. Explain and Suspicious judge an error of a server.
var (
	Version    = version
	Explain    = explain
	Suspicious = suspicious
)

// Sleeps are hooks of a backend, and for how long it sleeps. They are set before it starts.
func (b *Backend) Sleeps(often, seldom time.Duration, beforeSleep func(context.Context), afterLook func(asleep bool)) {
	b.naps, b.steps = naps{often, seldom}, steps{beforeSleep, afterLook}
}

// DropConnections closes the idle connections.
func (b *Backend) DropConnections() { b.dropConnections() }

// Bed is the name of the lock of an instance's sleep.
func (b *Backend) Bed(instance string) string { return b.bed(instance) }

// Door is the name of the lock for which a session waits.
func (b *Backend) Door(session int64) string { return b.door(session) }

// Way is how the instance gets its letters now, and why it does not listen.
func (b *Backend) Way() (state, why string) {
	w := b.way.now()
	return w.state, w.why
}

// WakeEach wakes instances, one after the other.
var WakeEach = wakeEach

// WakeOne wakes an instance.
func (b *Backend) WakeOne(ctx context.Context, instance string) error {
	return b.wakeOne(ctx, instance)
}

// Woke notes what the server said to a wake, and reports whether that was all.
func (b *Backend) Woke(err error) bool { return b.woke(err) }

// Wakes reports whether a packet with a letter to an instance wakes it.
func (b *Backend) Wakes(instance string) bool {
	p := b.packet(true)
	p.letterTo(instance)
	b.addWake(p)
	return p.wakes
}
