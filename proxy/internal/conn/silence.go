package conn

import (
	"math"
	"net"
	"time"
)

// Silence is how the vanishing of a TCP peer is noticed: a machine that loses power, or a cut network, closes nothing. The zero value leaves
// it to the system.
//
// The system probes a peer that says nothing after Probe, and ends the connection when nothing has come from it for Limit. So a peer that was
// heard at time t is believed in until t + Limit at least. An app may rely on a lock of the connection only until t + Limit - Probe, however
// long its lease is: see [Conn.Reach]. Therefore the app stops before its lock is released. Both sides count from the same sign of life, so it
// does not matter where and in which direction the network is cut.
type Silence struct {
	Probe, Limit time.Duration
}

// The longest time for which the app may rely on a lock, and the limits of Probe.
const (
	longestReach             = 30 * time.Second
	shortProbe, longestProbe = time.Second, 3 * time.Second
)

// SilenceFor is the silence that suits locks with a TTL.
func SilenceFor(ttl time.Duration) Silence {
	reach := min(max(ttl, time.Second), longestReach).Round(time.Millisecond)
	probe := min(max((reach/5).Truncate(time.Second), shortProbe), longestProbe)
	return Silence{Probe: probe, Limit: reach + 2*probe}
}

// noticeSilence sets a new connection's options. If one fails, the connection is closed, and the next use of it shows that.
func noticeSilence(nc net.Conn, s Silence) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok || s.Limit == 0 {
		return
	}
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: s.Probe, Interval: s.Probe, Count: int(s.Limit / s.Probe)})
	if raw, err := tcp.SyscallConn(); err == nil {
		limitUnanswered(raw, s.Limit)
	}
}

// Reach is for how long from now on the app may rely on the locks of the connection's session without further news of the sidecar. Any
// goroutine may call it.
func (c *Conn) Reach() time.Duration {
	s := c.set.cfg.Silence
	if c.Kind != TCP || c.raw == nil || s.Limit == 0 {
		return math.MaxInt64
	}
	return max(0, s.Limit-s.Probe-silentFor(c.raw))
}

// heartbeat is the time between two comment lines of an event stream. Over TCP they are also probes, because the system does not send its own
// while it waits for the answer to a write.
func (c *Conn) heartbeat() time.Duration {
	every := c.set.cfg.Timeouts.Heartbeat
	if c.Kind == TCP && c.set.cfg.Silence.Probe > 0 {
		every = min(every, c.set.cfg.Silence.Probe)
	}
	return every
}
