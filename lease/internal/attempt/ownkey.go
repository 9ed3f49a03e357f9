package attempt

import (
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// waitsForItself is the error of a request that would wait for a key of its own session, if only its own connection could
// release it. In an explicit session, another connection may.
func waitsForItself(s *holdings.Session, req *types.Request) error {
	if s == nil || s.Explicit() {
		return nil
	}
	held, share := s.Owns(req.Key)
	switch {
	case !held:
		return nil
	case share && !req.Shared:
		return types.Invalidf("field wait_ms", "lock %q: this session has a share of it, which cannot become exclusive; release it and acquire", req.Key)
	}
	return types.Invalidf("field wait_ms", "lock %q is held by this session, so the call would wait for itself; release the lock first", req.Key)
}

// ownKeyPause is after what time the log warns that a call waits for a key of its own session.
const ownKeyPause = 10 * time.Second

// WarnOfOwnKey logs once, if the call still waits after a while, that its own explicit session holds the key. Another
// thread of the session may release it, so the call is not refused.
func (c *Call) WarnOfOwnKey() (stop func()) {
	if c.S == nil || !c.S.Explicit() {
		return func() {}
	}
	if held, _ := c.S.Owns(c.req.Key); !held {
		return func() {}
	}
	timer := time.AfterFunc(ownKeyPause, func() {
		if held, _ := c.S.Owns(c.req.Key); held {
			c.aq.obs.WaitsForItself(c.req.Key, c.S.Name(), c.req.Traceparent)
		}
	})
	return func() { timer.Stop() }
}
