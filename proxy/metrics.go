package proxy

import "github.com/locksidecar/locksidecar/proxy/internal/wire"

// metrics is GET /metrics, with its query. The connection is polled: the call may take long.
func (k *call) metrics() *wire.Problem {
	if p := k.only(methodsGet); p != nil {
		return p
	}
	k.begin(false)
	k.srv.cfg.MetricsHandler(k.ctx)
	k.c.EndCall()
	r := &k.ctx.Response
	if r.IsBodyStream() {
		return nil // it does not stand in memory
	}
	p := k.roomFor(len(r.Body()))
	if p != nil {
		r.Header.Del("Content-Encoding") // of what is not said now
	}
	return p
}
