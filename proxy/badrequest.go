package proxy

import (
	"errors"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// badRequest translates the errors with which fasthttp gives up a request.
func badRequest(c *connection, err error) *wire.Problem {
	var head *fasthttp.ErrSmallBuffer
	switch {
	case c.TimedOut():
		return wire.Problemf(wire.CodeRequestTimeout, "the request was not complete after %s", c.srv.cfg.Timeouts.Request)
	case errors.As(err, &head):
		return wire.Problemf(wire.CodeHeadTooLarge, "request line and headers have more than %d bytes", conn.MaxHead)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		return wire.Problemf(wire.CodeTooLarge, "the body has more than %d bytes (LOCKSIDECAR_MAX_BODY)", c.srv.cfg.MaxBody)
	}
	return wire.Invalid("the request is not well-formed HTTP/1.1: %s", unquoted(err))
}

// unquoted is an error of fasthttp without the request that it quotes: that may have a session's id.
func unquoted(err error) string {
	text, _, _ := strings.Cut(err.Error(), `"`)
	return strings.TrimRight(strings.TrimSuffix(text, " in "), ": ")
}
