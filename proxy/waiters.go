package proxy

import "github.com/locksidecar/locksidecar/proxy/internal/wire"

// waiters is GET /v1/locks/{key}/waiters.
func (k *call) waiters(key string) *wire.Problem {
	k.startSpan(spanWaiters, routeWaiters, key)
	return k.waitersOf(key)
}

// allWaiters is GET /v1/waiters.
func (k *call) allWaiters() *wire.Problem {
	k.startSpan(spanWaiters, routeAllWaiters, "")
	if p := k.only(methodsGet); p != nil {
		return p
	}
	return k.waitersOf("")
}

func (k *call) waitersOf(key string) *wire.Problem {
	r, p := wire.ParseWaiters(k.Query, k.ctx.Request.Body(), key)
	if p != nil {
		return p
	}
	page, err := k.srv.locks.Waiters(k.begin(true), r)
	k.c.EndCall()
	if err != nil {
		return k.failed(err)
	}
	return k.answerLong(wire.AppendWaiters(k.buffer(), &page))
}
