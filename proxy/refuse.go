package proxy

import (
	"bytes"
	"context"
	"log/slog"

	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// recordProblem counts a problem, and logs it if this package refused the call. Package lease logs its own
// refusals, and admit logs refused connections.
func (k *call) recordProblem(p *wire.Problem) {
	k.srv.countProblem(p.Code)
	k.span.setProblem(p.Code)
	switch {
	case p.Refusal:
		k.logger().Warn("call refused", k.requestAttrs(p)...)
	case badRequests[p.Code] && k.srv.log.Enabled(context.Background(), slog.LevelDebug):
		k.logger().Debug("bad request", k.requestAttrs(p)...)
	}
}

// badRequests are the codes of an app's mistakes, which are logged at debug.
var badRequests = map[string]bool{
	wire.CodeInvalidRequest: true, wire.CodeNotFound: true, wire.CodeMethodNotAllowed: true,
	wire.CodeRequestTimeout: true, wire.CodeTooLarge: true, wire.CodeHeadTooLarge: true,
}

// maxLogged limits the bytes of a client's text in a log line.
const maxLogged = 2 * wire.MaxKey

// requestAttrs describes the call for the log, without its body, query and session.
func (k *call) requestAttrs(p *wire.Problem) []any {
	h := &k.ctx.Request.Header
	args := []any{
		"code", p.Code, "reason", p.Detail, "method", beginning(h.Method()), "path", k.logPath(), "by", k.c.Peer,
	}
	if k.c.Kind == conn.Unix {
		return args
	}
	args = append(args, "from", k.c.RemoteAddr().String(), "host", beginning(h.Host()))
	if len(k.origins) > 0 {
		args = append(args, "origin", beginning([]byte(k.origins[0])))
	}
	return args
}

func (k *call) logPath() string {
	if bytes.HasPrefix(k.Path, []byte(sessionsPath)) {
		return sessionsPath + "{id}"
	}
	return beginning(k.Path)
}

func beginning(b []byte) string { return string(b[:min(len(b), maxLogged)]) }
