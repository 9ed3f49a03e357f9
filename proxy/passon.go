package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
)

// passedOn answers a call for a session that this server does not know, with the answer of the server that knows it. While a server is
// replaced, the old one has the sessions, and new connections come to the new one: a pool of connections goes on over the change.
//
// Each call has a connection of its own to the other server, which is first asked whether it knows the session. One byte behind the call tells it that
// the caller has left: the other server ends the call if that is possible, and hands a grant back, also after it has answered. A connection that ends without this byte
// says nothing: if this server is killed, its caller may have read the answer, and the session keeps the lock.
//
// A call that may get locks, and so may wait, takes a second place in this server's room, and one at the other server, among its connections of the pod. If either has
// none, the call is refused with the limit. Other calls need no place. A connection passes on one call at a time, so a pod has no more of them than connections.
//
// Event streams are not passed on.
func (k *call) passedOn() (passed bool, p *wire.Problem) {
	if k.srv.cfg.Others == nil || k.c.Kind == conn.Passed {
		return false, nil
	}
	id := k.sessionOfCall()
	if id == "" || !mayBeSession(id) || !k.looksAtSession() {
		return false, nil
	}
	if _, err := k.srv.locks.Session(id); err == nil {
		return false, nil
	}
	others, unseen := k.srv.cfg.Others()
	if len(others) == 0 && unseen == nil {
		return false, nil
	}
	if k.acquires() {
		if p := k.memoryLow(); p != nil {
			return false, p
		}
	}
	other, err := k.whoKnows(id, others)
	err = errors.Join(err, unseen)
	switch {
	case other != nil:
		return k.passTo(other)
	case k.c.CallerLeft():
		return false, k.failed(lease.ErrCallerLeft)
	case errors.Is(err, errNoRoom):
		return false, wire.Problemf(wire.CodeLimit, "too many connections: a call for a session of the lock server that is being replaced needs one more, and all pods of the node together may have no more")
	case err != nil: // the session may live, so this is not the answer for one that has ended
		return false, wire.Problemf(wire.CodeStoreUnavailable, "the lock server that may have this session did not answer: the call was not carried out; repeat it")
	}
	return false, nil
}

// takePlace lets a call that another server passes on wait, if there is room for it here.
func (k *call) takePlace() *wire.Problem {
	if k.c.Kind != conn.Passed || !k.acquires() {
		return nil
	}
	p := k.c.TakePlace()
	if p != nil {
		p.Detail = "the lock server that is being replaced has " + p.Detail
	}
	return p
}

// acquires reports a call that may get locks.
func (k *call) acquires() bool {
	return k.ctx.IsPut() || k.ctx.IsPost() && string(k.Path) == "/v1/locks"
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

// whoKnows connects to the server that knows a session. Nil: none does, or the caller has left. If one does not answer, and none knows the session, that is the error.
func (k *call) whoKnows(id string, others []string) (found *otherServer, err error) {
	ctx := k.c.BeginCall(context.Background(), true)
	room := k.srv.cfg.Room
	if !k.acquires() { // it does not wait, and a release must not fail for room
		room = nil
	}
	var errs []error
	for _, socket := range others {
		o, err := connect(ctx, socket, k.srv.cfg.Timeouts.PassOn, room)
		if err != nil {
			errs = append(errs, unlessNobody(err))
			continue
		}
		knows, err := o.knows(id)
		if knows {
			found = o
			break
		}
		errs = append(errs, err)
		o.close()
	}
	if gone := k.c.EndCall(); gone && found != nil {
		found.close()
		found = nil
	}
	return found, errors.Join(errs...)
}

// mayBeSession reports whether the text can be a session's id, which is a part of a path.
func mayBeSession(id string) bool {
	return !strings.ContainsFunc(id, func(r rune) bool {
		return r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' && r != '_'
	})
}

// passTo carries the call out at the other server.
func (k *call) passTo(other *otherServer) (passed bool, p *wire.Problem) {
	answer := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(answer)
	mayGrant := k.acquires()
	err := k.sendTo(other)
	ctx := k.beginCancelable() // gives up the request, because the call may wait for hours
	if err == nil {
		err = other.answer(ctx, k.ctx.IsHead(), answer)
	}
	gone := k.c.EndCall() || k.c.HasLeft()
	if err != nil {
		other.close()
		return false, wire.Problemf(wire.CodeStoreUnavailable, "the lock server that has this session did not answer: the call may be carried out; repeat it with the same request_id")
	}
	if !mayGrant || answer.StatusCode() != fasthttp.StatusOK {
		other.close()
	} else {
		k.c.unwritten = append(k.c.unwritten, unwrittenGrant{passed: other})
	}
	if gone {
		k.c.handBackUnwritten()
		return false, k.failed(lease.ErrCallerLeft)
	}
	if p := k.roomFor(len(answer.Body())); p != nil {
		k.c.handBackUnwritten()
		return false, p
	}
	k.takeAnswer(answer)
	return true, nil
}

// sendTo sends the request to the other server.
func (k *call) sendTo(other *otherServer) error {
	h := &k.ctx.Request.Header
	h.ResetConnectionClose()
	h.SetProtocol("HTTP/1.1") // so that the other server waits for what may come behind
	_ = other.nc.SetWriteDeadline(time.Now().Add(other.timeout))
	w := bufio.NewWriter(other.nc)
	return errors.Join(k.ctx.Request.Write(w), w.Flush())
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
	k.answerGrants(bytes.Clone(answer.Body()))
	r.Header.SetContentTypeBytes(answer.Header.ContentType())
}

// otherServer is a connection to another server, for one call.
type otherServer struct {
	nc      net.Conn
	r       *bufio.Reader
	timeout time.Duration
	room    *Room
	once    sync.Once
}

// callerLeft is the byte that tells another server that the caller has left.
const callerLeft = "X"

var (
	errNobody = errors.New("nobody listens there")
	errNoRoom = errors.New("there is no room for a connection")
)

func unlessNobody(err error) error {
	if errors.Is(err, errNobody) {
		return nil
	}
	return err
}

// connect connects to a server. Errors: errNobody, errNoRoom.
func connect(ctx context.Context, socket string, timeout time.Duration, room *Room) (*otherServer, error) {
	if !room.Enter() {
		return nil, errNoRoom
	}
	d := net.Dialer{Timeout: timeout}
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		room.Leave()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return nil, errNobody
	case err != nil:
		return nil, err
	}
	return &otherServer{nc: nc, r: bufio.NewReader(nc), timeout: timeout, room: room}, nil
}

// close ends the connection. It says nothing about the caller.
func (o *otherServer) close() {
	o.once.Do(func() {
		_ = o.nc.Close()
		o.room.Leave()
	})
}

// handBack tells the other server that the caller has left, and ends the connection.
func (o *otherServer) handBack() {
	_ = o.nc.SetDeadline(time.Now().Add(o.timeout))
	_, _ = io.WriteString(o.nc, callerLeft)
	o.close()
}

// knows asks whether the server knows a session, for a limited time.
func (o *otherServer) knows(id string) (bool, error) {
	_ = o.nc.SetDeadline(time.Now().Add(o.timeout))
	defer func() { _ = o.nc.SetDeadline(time.Time{}) }()
	request := fasthttp.AcquireRequest()
	defer fasthttp.ReleaseRequest(request)
	request.Header.SetMethod(fasthttp.MethodGet)
	request.Header.SetHost("localhost")
	request.SetRequestURI(sessionsPath + id)
	w := bufio.NewWriter(o.nc)
	if err := errors.Join(request.Write(w), w.Flush()); err != nil {
		return false, err
	}
	answer := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(answer)
	if err := answer.ReadLimitBody(o.r, conn.MaxHead); err != nil {
		return false, err
	}
	switch answer.StatusCode() {
	case fasthttp.StatusOK:
		return true, nil
	case fasthttp.StatusGone, fasthttp.StatusNotFound: // not found: no session has such an id
		return false, nil
	}
	return false, errors.New("the other server does not say whether it knows the session")
}

// answer reads the answer, however long it takes. When ctx ends, the other server is told that the caller has left, and the rest is limited.
func (o *otherServer) answer(ctx context.Context, head bool, to *fasthttp.Response) error {
	stop := context.AfterFunc(ctx, func() {
		_ = o.nc.SetDeadline(time.Now().Add(o.timeout))
		_, _ = io.WriteString(o.nc, callerLeft)
	})
	defer stop()
	to.SkipBody = head
	return to.ReadLimitBody(o.r, conn.MaxAnswers)
}

// knowsSession answers another server that asks for a session.
func (k *call) knowsSession(id string) *wire.Problem {
	if _, err := k.srv.locks.Session(id); err != nil {
		return wire.Problemf(wire.CodeSessionEnded, "there is no session with this id")
	}
	return k.fixed([]byte(`{}`))
}
