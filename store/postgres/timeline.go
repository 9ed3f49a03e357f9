package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// primary identifies a server that accepts writes, and how recent its copy of the database is.
type primary struct {
	// system identifies the cluster with all its copies. host is the server's name in the URL. Both are empty
	// if the URL names one host, or the server refuses to tell its cluster.
	system, host string
	// server is its identity (the function here). A row-by-row copy has another mark.
	server, mark string
	// after is the token that began the last history of this copy. begun: the server is still in that history.
	// Otherwise it was promoted or restored, and its next grant begins another history.
	after int64
	begun bool
	// restarted: the server is not in that history, perhaps only because it was restarted.
	restarted bool
	// outdated: a sidecar saw a later copy, and recorded this on the server.
	outdated bool
}

// before reports whether a primary is older than another: its history is earlier, or equal and the other
// server has already left it. A promoted or restored server begins its own history, so it is not older.
func (l primary) before(other primary) bool {
	if l.after == other.after {
		return l.begun && !other.begun
	}
	return l.after < other.after && (l.begun || l.restarted || l.outdated)
}

// primaries refuses servers that are older than the latest primary that was seen. An old one would grant
// old tokens, and report locks that it does not know as released.
type primaries struct {
	mu sync.Mutex
	// last is the server to which the store connected last. latest is the latest of all seen.
	last, latest primary
}

type oldError struct{ found, latest primary }

func (e *oldError) Error() string {
	seen := "another sidecar saw a later one"
	if e.latest.server != "" {
		seen = fmt.Sprintf("a later one was seen (%s, tokens from %d)", e.latest.server, e.latest.after)
	}
	return fmt.Sprintf("the server is an old primary (%s, tokens from %d); %s; if this one is meant to be the primary again, "+
		"run `SELECT locksidecar.restored()` on it as the owner of the schema", e.found.server, e.found.after, seen)
}

// strangerError refuses a host of the URL that is not a copy of the previous server, because it has other
// locks. A URL with a single host may lead to another cluster after an upgrade or a move.
type strangerError struct{ found, latest primary }

func (e *strangerError) Error() string {
	return fmt.Sprintf("the server %s is of another cluster (system identifier %s) than the server before, %s (%s): "+
		"all hosts of the URL must be copies of one server; if the database has moved there, restart the sidecar",
		e.found.host, e.found.system, e.latest.host, e.latest.system)
}

// check is refuse. The caller holds the mutex.
func (l *primaries) check(found primary) error {
	if found.system != l.last.system && found.host != "" && l.last.host != "" && found.host != l.last.host {
		return &strangerError{found, l.last}
	}
	if found.before(l.latest) {
		return &oldError{found, l.latest}
	}
	if found.outdated {
		return &oldError{found: found}
	}
	return nil
}

// refuse returns an error if a server must not be used: it is older than the latest one that was seen, or a stranger.
func (l *primaries) refuse(found primary) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.check(found)
}

// learn checks a server as refuse does, and then remembers it as the latest one, unless a later one was seen.
func (l *primaries) learn(found primary) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.check(found)
	if err == nil && found.after >= l.latest.after {
		l.latest = found
	}
	return err
}

// saw checks and remembers the server of a connection as learn does, and also as the last one. another reports whether
// that was a different server before.
func (l *primaries) saw(found primary) (another bool, err error) {
	if err := l.learn(found); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	another = l.last.server != "" && (found.system != l.last.system || found.server != l.last.server || found.mark != l.last.mark)
	l.last = found
	return another, nil
}

// recognize checks the server of each new connection. If the check fails, pgx tries the next host.
func (s *Space) recognize(base pgconn.ValidateConnectFunc, hosts *hostNames, accept func(primary) error) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, conn *pgconn.PgConn) error {
		if err := base(ctx, conn); err != nil {
			return err
		}
		found, err := s.primaryOf(ctx, conn, setRead)
		if err != nil && !answered(err) {
			return err
		}
		if hosts != nil {
			row, err := s.askRow(ctx, conn, setRead, sqlSystem)
			if err != nil && !answered(err) {
				return err
			}
			if row != nil {
				found.system, found.host = string(row[0]), hosts.of(conn.Conn().RemoteAddr())
			}
		}
		// The server cannot grant: it is a standby, lacks the schema, or refuses to read it.
		if found == (primary{}) {
			return nil
		}
		err = accept(found)
		old, ok := errors.AsType[*oldError](err)
		if ok && found.after < old.latest.after && found.mark == old.latest.mark { // otherwise it may be another database
			// If outdate fails, the next connection repeats it.
			_, _ = s.askRow(ctx, conn, setWrite, sqlOutdate, found.after, old.latest.after)
		}
		return err
	}
}

// primaryOf reads the identity of the server. It is zero for a standby. transaction: see askRow.
func (s *Space) primaryOf(ctx context.Context, conn *pgconn.PgConn, transaction string) (found primary, err error) {
	row, err := s.askRow(ctx, conn, transaction, sqlPrimary)
	if err != nil || row == nil {
		return primary{}, err
	}
	is := func(column int) bool { return string(row[column]) == "t" }
	found = primary{server: string(row[0]), mark: string(row[1]), begun: is(3), restarted: is(4), outdated: is(5)}
	found.after, err = strconv.ParseInt(string(row[2]), 10, 64)
	quiet, _ := strconv.ParseInt(string(row[6]), 10, 64) // null: there is no quiet time
	s.quiet.note(s.log, time.Duration(quiet)*time.Millisecond)
	return found, err
}

// askRow runs a statement and returns the first row as text, or nil. transaction sets up its transaction; empty: the
// session is set up. args are numbers.
//
// All is one simple query, which is a transaction of its own, and so an error ends it at once. After an error in a
// transaction that BEGIN began, a role with an idle_in_transaction_session_timeout of less than a round trip would lose the
// connection, each time: a role that only reads may not ask for the server's name.
func (s *Space) askRow(ctx context.Context, conn *pgconn.PgConn, transaction string, sql statement, args ...any) (row [][]byte, err error) {
	text := inline(sql.sql, args)
	if transaction != "" {
		text = transaction + ";\n" + inline(sqlConnectionSetUp.sql, s.settings(true)) + ";\n" + text
	}
	err = s.measured(ctx, sql, func(string) error {
		results, err := conn.Exec(ctx, text).ReadAll()
		if err == nil && len(results[len(results)-1].Rows) > 0 {
			row = results[len(results)-1].Rows[0]
		}
		return err
	})
	return row, err
}

// inline replaces up to nine parameters by their values, which need no quoting.
func inline(sql string, args []any) string {
	var pairs []string
	for i, arg := range args {
		pairs = append(pairs, fmt.Sprintf("$%d", i+1), fmt.Sprintf("'%v'", arg))
	}
	return strings.NewReplacer(pairs...).Replace(sql)
}

// answered reports whether an error is the server's answer, which leaves the connection usable.
func answered(err error) bool { return sqlState(err) != "" && !unknown(err) }

// learn reads the server's history again, because another session may have begun a new one.
func (s *Space) learn(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := live(ctx, pool)
	if err != nil {
		return err
	}
	defer handBack(conn)
	transaction := ""
	if s.isPooled() {
		transaction = setRead
	}
	found, err := s.primaryOf(ctx, conn.Conn().PgConn(), transaction)
	if err != nil {
		return err
	}
	return s.primaries.learn(found)
}

// hostNames maps addresses, which can change, to the host names of the URL.
type hostNames struct{ names sync.Map } // by address

func (h *hostNames) noting(lookup pgconn.LookupFunc) pgconn.LookupFunc {
	return func(ctx context.Context, host string) ([]string, error) {
		addresses, err := lookup(ctx, host)
		for _, address := range addresses {
			h.names.Store(address, host)
		}
		return addresses, err
	}
}

// of returns the URL's host with the port of an address, or the path of a socket.
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

// follow checks the server of each new connection, except the connection of a listener with its own URL.
func (s *Space) follow(found primary) error {
	another, err := s.primaries.saw(found)
	if another {
		s.leaveOld()
	}
	if _, ok := errors.AsType[*strangerError](err); ok { // if another host works, this is not reported elsewhere
		s.sayOnce(slog.LevelError, "the hosts of the store's URL are different clusters, which do not share locks", "error", err)
	}
	return err
}

func (s *Space) leaveOld() {
	s.mu.Lock()
	r := s.started
	s.mu.Unlock()
	if r != nil {
		r.main.Reset()
		r.renewalPool.Reset()
		s.listener.leave()
	}
}
