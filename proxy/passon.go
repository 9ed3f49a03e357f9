package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// passedOn answers a call for a session that this server does not know, with the answer of the server that knows it. While a server is
// replaced, the old one has the sessions, and new connections come to the new one: a pool of connections goes on over the change.
//
// If the caller leaves during the call, the connection to the other server closes, and that one hands a grant back. An answer that
// arrived just then is lost, as on a connection that breaks: the session keeps the lock, and a repeat with the same request_id gets it.
// Event streams are not passed on.
func (k *call) passedOn() (passed bool, p *wire.Problem) {
	if k.srv.cfg.Others == nil || k.c.Kind == conn.Passed {
		return false, nil
	}
	id := k.sessionOfCall()
	if id == "" || !k.looksAtSession() {
		return false, nil
	}
	if _, err := k.srv.locks.Session(id); err == nil {
		return false, nil
	}
	others := k.srv.cfg.Others()
	if len(others) == 0 {
		return false, nil
	}
	if k.ctx.IsPut() || k.ctx.IsPost() && string(k.Path) == "/v1/locks" {
		if p := k.memoryLow(); p != nil {
			return false, p
		}
	}
	request, err := k.requestBytes()
	if err != nil {
		return false, nil
	}
	answer := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(answer)
	ctx := k.c.BeginCall(context.Background(), true)
	became := unknown
	for _, socket := range others {
		if became = ask(ctx, socket, request, k.ctx.IsHead(), answer); became != unknown {
			break
		}
	}
	k.c.EndCall()
	switch became {
	case answered:
		k.takeAnswer(answer)
		return true, nil
	case unsure:
		// The session may live, and the call may be carried out. So this is not the answer for a session that has ended.
		return false, wire.Problemf(wire.CodeStoreUnavailable, "the lock server that may have this session did not answer: the call may be carried out; repeat it with the same request_id")
	default:
		return false, nil
	}
}

// looksAtSession reports whether a call of this path looks at its session, so that another server says if it does not know it.
func (k *call) looksAtSession() bool {
	if bytes.HasPrefix(k.Path, []byte(sessionsPath)) || string(k.Path) == "/v1/locks" {
		return true
	}
	key, lock := bytes.CutPrefix(k.Path, []byte(locksPath))
	_, rest, deeper := bytes.Cut(key, []byte{'/'})
	return lock && (!deeper || string(rest) == "release")
}

// sessionOfCall is the id of the explicit session that a call names in its header or its path, or empty.
func (k *call) sessionOfCall() string {
	if id, one := bytes.CutPrefix(k.Path, []byte(sessionsPath)); one && k.sessions == 0 {
		return string(id)
	}
	if k.sessions != 1 {
		return ""
	}
	return string(k.session)
}

func (k *call) requestBytes() ([]byte, error) {
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	k.ctx.Request.Header.ResetConnectionClose()
	if err := k.ctx.Request.Write(w); err != nil {
		return nil, err
	}
	err := w.Flush()
	return b.Bytes(), err
}

// outcome is what became of a call that was passed on.
type outcome int

const (
	unknown  outcome = iota // nobody listens there, or the server does not know the session
	answered                // the server knows the session
	unsure                  // it did not answer
)

// ask passes a call on to the server at the socket, and reads its answer. It ends with ctx.
func ask(ctx context.Context, socket string, request []byte, head bool, answer *fasthttp.Response) outcome {
	nc, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return unknown
	}
	if err != nil {
		return unsure
	}
	defer func() { _ = nc.Close() }()
	defer context.AfterFunc(ctx, func() { _ = nc.Close() })()
	if _, err := nc.Write(request); err != nil {
		return unsure
	}
	answer.Reset()
	answer.SkipBody = head
	if err := answer.Read(bufio.NewReader(nc)); err != nil {
		return unsure
	}
	if answer.StatusCode() == fasthttp.StatusGone && bytes.Contains(answer.Body(), []byte(`"code":"`+wire.CodeSessionEnded+`"`)) {
		return unknown
	}
	return answered
}

// takeAnswer makes an answer of another server that of the call.
func (k *call) takeAnswer(answer *fasthttp.Response) {
	r := &k.ctx.Response
	r.SetStatusCode(answer.StatusCode())
	for _, name := range []string{"Allow", "Retry-After"} {
		if value := answer.Header.Peek(name); len(value) > 0 {
			r.Header.SetBytesV(name, value)
		}
	}
	r.Header.SetContentTypeBytes(answer.Header.ContentType())
	r.SetBody(answer.Body())
}
