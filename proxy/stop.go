package proxy

import "github.com/locksidecar/locksidecar/proxy/internal/wire"

// askToStop is POST /v1/locks/{key}/stop, carried out like release. Its answer promises nothing.
func (k *call) askToStop(key string) *wire.Problem {
	k.startSpan(spanStop, routeStop, key)
	token, reason, p := wire.ParseStop(k.Query, k.ctx.Request.Body())
	if p != nil {
		return p
	}
	k.span.setClaim(token, nil)
	err := k.srv.locks.AskToStop(k.begin(false), key, token, reason)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	k.answer(wire.AppendAsked(k.buffer(), key))
	k.ctx.Response.SetStatusCode(statusAccepted)
	return nil
}

// statusAccepted: the request is on its way, and no more is known.
const statusAccepted = 202
