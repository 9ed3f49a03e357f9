package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// errOtherServer: notifications of the store's server do not arrive at this one.
var errOtherServer = errors.New("LOCKSIDECAR_POSTGRES_LISTEN_URL leads to another server than LOCKSIDECAR_STORE_URL: both must lead to the same database")

// whereabouts identifies the server and the database of a connection: see the statement.
type whereabouts struct {
	server   int64
	database string
}

func (s *Space) listens() bool { return !s.readsOnly.Load() && (s.direct != nil || !s.isPooled()) }

// greet checks the server behind a listener's own URL, and then sets up the session. Before this check, the
// server is not trusted, not even its clock.
func (e *listener) greet(ctx context.Context, conn *pgx.Conn) error {
	own, err := e.compare(ctx, conn)
	if err != nil || !own { // the settings would remain in a pooler's session
		return err
	}
	return e.s.setUpSession(ctx, conn)
}

// compare fails if the listener's connection does not lead to the store's database. A pooler or another
// host can lead to a new server while the old one still runs. own reports whether the session belongs to
// this connection alone.
func (e *listener) compare(ctx context.Context, conn *pgx.Conn) (own bool, err error) {
	var there whereabouts
	var process uint32
	err = e.s.measured(ctx, sqlWhereabouts, func(sql string) error {
		return conn.QueryRow(ctx, sql, pgx.QueryExecModeExec).Scan(&there.server, &there.database, &process)
	})
	if err != nil {
		return false, err
	}
	here, err := e.s.whereabouts(ctx)
	switch {
	case err != nil:
		return false, err
	case here.server != there.server:
		return false, errOtherServer
	case here.database != there.database:
		return false, fmt.Errorf("LOCKSIDECAR_POSTGRES_LISTEN_URL leads to the database %q, LOCKSIDECAR_STORE_URL to %q: both must lead to the same database",
			there.database, here.database)
	}
	return process == conn.PgConn().PID(), nil
}

func (s *Space) whereabouts(ctx context.Context) (whereabouts, error) {
	ctx, cancel, o, err := s.own.begin(ctx, "listen")
	if err != nil {
		return whereabouts{}, err
	}
	defer cancel()
	found, err := query(ctx, o, sqlWhereabouts, nil, func(rows pgx.Rows, w *whereabouts) error {
		return rows.Scan(&w.server, &w.database, nil)
	})
	if err == nil && len(found) != 1 {
		err = o.fail(errShort, false)
	}
	if err != nil {
		return whereabouts{}, err
	}
	return found[0], nil
}
