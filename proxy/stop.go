package proxy

// askToStop is POST /v1/locks/{key}/stop. As with release, it is carried out. The
// answer promises nothing: the holder decides.
func (k *call) askToStop(key string) *problem {
	k.startSpan(spanStop, routeStop, key)
	if p := parseQuery(k.query, nil); p != nil {
		return p
	}
	reason, p := parseStop(k.ctx.Request.Body())
	if p != nil {
		return p
	}
	err := k.srv.locks.AskToStop(k.c.watch.begin(false), key, reason)
	k.c.watch.end()
	if err != nil {
		return k.failed(err)
	}
	b := append(k.buffer(), `{"key":`...)
	b = appendString(b, key)
	k.answer(append(b, `,"requested":true}`...))
	k.ctx.Response.SetStatusCode(statusAccepted)
	return nil
}

// statusAccepted: what was asked for is on its way, and no more than that is known.
const statusAccepted = 202
