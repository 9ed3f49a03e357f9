package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// conn is a connection to a sidecar, one call at a time.
type conn struct {
	net.Conn
	br *bufio.Reader
}

// answer is what clients read of an answer, whatever was asked for.
type answer struct {
	status     int
	retryAfter time.Duration // zero: it says none

	Key       string   `json:"key"`
	Granted   bool     `json:"granted"`
	Token     int64    `json:"token"`
	ExpiresIn int64    `json:"expires_in_ms"`
	Waited    int64    `json:"waited_ms"`
	Code      string   `json:"code"`
	Reason    string   `json:"reason"`
	Detail    string   `json:"detail"`
	Cached    bool     `json:"cached"`
	Position  int      `json:"queue_position"`
	Holder    *holder  `json:"holder"`
	State     string   `json:"state"`
	Locks     []answer `json:"locks"`
	Mode      string   `json:"mode"`
	Limit     int      `json:"limit"`
	Slot      *int     `json:"slot"`
	Holders   int      `json:"holders_count"`
}

// holder is all that clients want to know of another one: whether there is one.
type holder struct{}

// note is what the history says about it. If the sidecar is the reason, the note has the detail, too.
func (a answer) note() string {
	text := fmt.Sprint(a.status, " ", a.Code, " ", a.Reason)
	if a.status >= 500 {
		text += " " + a.Detail
	}
	return strings.TrimSpace(text)
}

// slot is as in [history.Op].
func (a answer) slot() int {
	if a.Slot == nil {
		return 0
	}
	return *a.Slot + 1
}

func dial(ctx context.Context, socket string) (*conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, br: bufio.NewReader(c)}, nil
}

func lockPath(key string) string { return "/v1/locks/" + url.PathEscape(key) }

// call sends a request and reads its answer, until ctx or the time limit ends. After an error its outcome is unknown,
// and the connection cannot be used any more.
func (c *conn) call(ctx context.Context, limit time.Duration, method, path, body string, headers ...string) (answer, error) {
	_ = c.SetDeadline(time.Now().Add(limit))
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := wire.Send(c, method, path, body, headers...); err != nil {
		return answer{}, err
	}
	res, err := http.ReadResponse(c.br, nil)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	a := answer{status: res.StatusCode, retryAfter: retryAfter(res)}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	if err := json.Unmarshal(text, &a); err != nil && len(text) > 0 {
		return answer{}, err
	}
	if res.Close {
		return a, errClosing
	}
	return a, nil
}

// retryAfter is how long the client shall wait before it asks again, as the answer says.
func retryAfter(res *http.Response) time.Duration {
	seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	return time.Duration(seconds) * time.Second
}

// errClosing comes with an answer after which the sidecar closes the connection.
var errClosing = errors.New("load: the sidecar closes the connection")

// alive waits for a while, and reports whether the connection stands then. It returns as
// soon as it does not.
func (c *conn) alive(ctx context.Context, d time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(d))
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
	_, err := c.br.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded) // anything else is the end, or an answer to nothing
}
