package postgres

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/store"
)

const (
	stateDeadlock      = "40P01"
	stateSerialization = "40001"
	stateReadOnly      = "25006"
	stateLockTimeout   = "55P03"
	stateNotSupported  = "0A000"
	stateNoSchema      = "3F000"
	stateNoTable       = "42P01"
	stateNoColumn      = "42703"
	stateNoFunction    = "42883"
	// Raised by this package's functions: in_history, in_time, may_take, new_history.
	stateNewHistory = "LS001"
	stateTooLate    = "LS002"
	stateTooOld     = "LS003"
	stateOldOne     = "LS004"
)

var (
	errNotStarted = errors.New("the store is not started")
	errNewHistory = errors.New("the database server was promoted or restored, and another session is preparing it")
	errNoMeta     = errors.New("locksidecar.meta has no row: run `locksidecar migrate`")
	errStandby    = errors.New("the database server is a standby")
	errStopped    = errors.New("the store is stopped")
	// errNotReplicated: the server stopped waiting for a synchronous standby, and reported only a warning.
	errNotReplicated = errors.New("committed, but the synchronous standby has not confirmed it")
)

// translate classifies errors of the database. reached is false if there was no connection. partly is true if
// an earlier statement of the operation changed something.
func translate(op string, err error, reached, partly bool) *store.Error {
	return &store.Error{Op: op, Err: err, Unknown: partly || reached && unknown(err)}
}

// unknown reports whether a failed statement may have changed something. An ERROR of the server ends the
// transaction, so nothing was done. A FATAL ends the connection, and can come after the commit.
func unknown(err error) bool {
	if pgconn.SafeToRetry(err) {
		return false
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.SeverityUnlocalized != "ERROR"
	}
	return true
}

// sqlState is the SQLSTATE of an error from the server, or empty.
func sqlState(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// repeatable reports whether the server rolled a statement back because of concurrent ones.
func repeatable(err error) bool {
	code := sqlState(err)
	return code == stateDeadlock || code == stateSerialization
}

func notLetIn(err error) bool { return strings.HasPrefix(sqlState(err), "28") }

func isRowLocked(err error) bool { return sqlState(err) == stateLockTimeout }

// suspicious reports whether an error makes the connections, the server, its clock or its schema doubtful,
// beyond one statement.
func suspicious(err error) bool {
	switch sqlState(err) {
	case stateReadOnly, stateTooLate, stateTooOld, stateNoSchema, stateNoTable, stateNoColumn, stateNoFunction:
		return true
	}
	return !errors.Is(err, errNoPlace) && (unknown(err) || pgconn.SafeToRetry(err))
}
