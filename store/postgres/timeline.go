package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// line is which server of a pair is at the other end: those of one system are copies of each
// other, and whoever is promoted begins a timeline with a higher number.
type line struct {
	system   string
	timeline uint64
	// host is where it was found, if the URL names several hosts.
	host string
}

// lines knows the latest server that was seen. One that is older was the primary, takes
// writes, and does not know that there is another: it may have been cut off or stopped. It
// grants nothing, if it waits for its standby; but what is read there is old, and a lock that
// it does not know would count as released.
type lines struct {
	mu     sync.Mutex
	latest line
}

// oldError is why a server is refused that is older than another that was seen.
type oldError struct{ found, latest uint64 }

func (e *oldError) Error() string {
	return fmt.Sprintf("the server is an old primary, on timeline %d; there was one on timeline %d; "+
		"if this one is meant to be the primary again, restart the sidecar", e.found, e.latest)
}

// strangerError is why one of several hosts is refused that is no copy of the server before:
// locks that are held there are not held here. One host may lead to another system, when its
// server was upgraded or moved.
type strangerError struct{ found, latest line }

func (e *strangerError) Error() string {
	return fmt.Sprintf("the server %s is of another cluster (system identifier %s) than the server before, %s (%s): "+
		"all hosts of the URL must be copies of one server; if the database has moved there, restart the sidecar",
		e.found.host, e.found.system, e.latest.host, e.latest.system)
}

// judge is for who has the mutex.
func (l *lines) judge(found line) error {
	if found.system == l.latest.system && found.timeline < l.latest.timeline {
		return &oldError{found.timeline, l.latest.timeline}
	}
	if found.system != l.latest.system && found.host != "" && l.latest.host != "" && found.host != l.latest.host {
		return &strangerError{found, l.latest}
	}
	return nil
}

// isOld fails for a server that is older than another that was seen.
func (l *lines) isOld(found line) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.judge(found)
}

// saw is isOld that notes the server, and reports whether it is later than all.
func (l *lines) saw(found line) (later bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.judge(found); err != nil {
		return false, err
	}
	later = (found.system != l.latest.system || found.timeline != l.latest.timeline) && l.latest != line{}
	l.latest = found
	return later, nil
}

// recognize is for each new connection, before it is used: of several hosts, another one is
// tried when it fails.
func (s *Store) recognize(base pgconn.ValidateConnectFunc, hosts *hostNames, judge func(line) error) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := base(ctx, conn); err != nil {
			return err
		}
		var result *pgconn.Result
		err := s.measured(ctx, sqlTimeline, func(sql string) error {
			result = conn.ExecParams(ctx, sql, nil, nil, nil, nil).Read()
			return result.Err
		})
		if err != nil {
			return err
		}
		if len(result.Rows) != 1 || result.Rows[0][1] == nil {
			return nil // a standby: what it says is not judged
		}
		timeline, err := strconv.ParseUint(string(result.Rows[0][1]), 16, 64)
		if err != nil {
			return err
		}
		found := line{system: string(result.Rows[0][0]), timeline: timeline}
		if hosts != nil {
			found.host = hosts.of(conn.Conn().RemoteAddr())
		}
		return judge(found)
	}
}

// hostNames knows the hosts of a URL that names several by what the URL calls them: the
// address behind a name changes, as that of a pod does whenever it starts.
type hostNames struct{ names sync.Map } // by address

// noting is lookup, and notes what it finds.
func (h *hostNames) noting(lookup pgconn.LookupFunc) pgconn.LookupFunc {
	return func(ctx context.Context, host string) ([]string, error) {
		addresses, err := lookup(ctx, host)
		for _, address := range addresses {
			h.names.Store(address, host)
		}
		return addresses, err
	}
}

// of is the host and the port at an address, or the path of a socket.
func (h *hostNames) of(address net.Addr) string {
	host, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return address.String()
	}
	if name, ok := h.names.Load(host); ok {
		host = name.(string)
	}
	return net.JoinHostPort(host, port)
}

// follow judges servers for all connections but one that listens at a URL of its own: what is
// found there is not the store's, and nothing is learnt from it.
func (s *Store) follow(found line) error {
	later, err := s.lines.saw(found)
	if later {
		s.leaveOld()
	}
	if _, ok := errors.AsType[*strangerError](err); ok { // another host may do: then nobody else says it
		s.sayOnce(slog.LevelError, "the hosts of the store's URL are different clusters, which know nothing of each other's locks", "error", err)
	}
	return err
}

// leaveOld drops the connections that may lead to a server that is not the primary any more.
func (s *Store) leaveOld() {
	s.mu.Lock()
	r := s.started
	s.mu.Unlock()
	if r != nil {
		r.shared.Reset()
		r.renewals.Reset()
		s.ear.leave()
	}
}
