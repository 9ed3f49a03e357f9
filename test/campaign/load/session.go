package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// session is who owns the locks of a client: the connection of its calls, or an
// explicit one with an event stream of its own.
type session struct {
	name string // in the history

	id     string // for Lock-Session; empty for a connection's own
	stream *conn
	over   chan struct{} // closed when the stream has ended
	later  time.Duration // when to try again, if it could not be opened

	mu   sync.Mutex
	lost map[int64]bool // tokens that the stream said are lost
}

// open makes it an explicit session, and calls told for each loss.
func (s *session) open(ctx context.Context, socket string, told func(s *session, key string, token int64, reason string)) error {
	c, err := dial(ctx, socket)
	if err != nil {
		return err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := wire.Send(c, "POST", "/v1/sessions", "{}"); err != nil {
		return errors.Join(err, c.Close())
	}
	res, err := http.ReadResponse(c.br, nil) //nolint:bodyclose // closing would wait for the end of the stream
	if err != nil {
		return errors.Join(err, c.Close())
	}
	if res.StatusCode != 200 {
		s.later = retryAfter(res)
		return errors.Join(errors.New("load: no session: "+res.Status), c.Close())
	}
	lines := bufio.NewScanner(res.Body)
	var first struct {
		Session string `json:"session"`
	}
	name, data, ok := nextEvent(lines)
	if !ok || name != "session" || json.Unmarshal(data, &first) != nil {
		return errors.Join(errors.New("load: the stream does not begin with the session"), c.Close())
	}
	_ = c.SetDeadline(time.Time{})
	s.id, s.stream, s.over, s.lost = first.Session, c, make(chan struct{}), make(map[int64]bool)
	go s.listen(lines, told)
	return nil
}

func (s *session) listen(lines *bufio.Scanner, told func(s *session, key string, token int64, reason string)) {
	defer close(s.over)
	for {
		name, data, ok := nextEvent(lines)
		if !ok {
			return
		}
		var e answer
		if name != "lost" || json.Unmarshal(data, &e) != nil {
			continue
		}
		s.mu.Lock()
		s.lost[e.Token] = true
		s.mu.Unlock()
		told(s, e.Key, e.Token, e.Reason)
	}
}

// hasLost reports whether the stream said so.
func (s *session) hasLost(token int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost[token]
}

// explicit reports whether it is an explicit session.
func (s *session) explicit() bool { return s.stream != nil }

// headers are those of a call in it.
func (s *session) headers() []string {
	if s.id == "" {
		return nil
	}
	return []string{"Lock-Session: " + s.id}
}

// close ends an explicit session, and returns when no more losses can be reported.
func (s *session) close() {
	if s.stream != nil {
		_ = s.stream.Close()
		<-s.over
	}
}

// nextEvent reads one server-sent event; comments are passed over.
func nextEvent(lines *bufio.Scanner) (name string, data []byte, ok bool) {
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "event":
			name = value
		case "data":
			data = []byte(value)
		case "":
			if name != "" {
				return name, data, true
			}
		}
	}
	return "", nil, false
}
