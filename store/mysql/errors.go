package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"

	"github.com/go-sql-driver/mysql"
)

var (
	errNotReached = errors.New("the database has not been reached yet")
	errTooLarge   = errors.New("the record, its letters or their names are larger than the tables allow")
	errRowLocked  = errors.New("another database session keeps rows of locksidecar locked")
	errFormat     = errors.New("the database answered with something else than was asked for")
	errMetaLost   = errors.New("the table locksidecar_meta has no row; it must have one: run `locksidecar migrate`")
	errOldPrimary = errors.New("the server is an old primary: sidecars have seen a later one, which it does not follow. Cut it off; or, if the later one " +
		"is lost for ever, run: UPDATE locksidecar_meta SET server = 'restored'")
	errMoved = errors.New("this is another server than the one that wrote the data: one was promoted, or a pooler asks a replica")
)

// Numbers of the server's errors.
const (
	errorLockWait      = 1205
	errorDeadlock      = 1213
	errorChanged       = 1020 // a snapshot is too old; MariaDB
	errorSubqueryRows  = 1242 // the guard
	errorNowait        = 3572 // MySQL; MariaDB answers errorLockWait
	errorNoTable       = 1146
	errorNoRight       = 1142
	errorReadOnly      = 1290
	errorReadOnlyMode  = 1836
	errorReadOnlyTrans = 1792
	errorAccess        = 1045
	errorNoDatabase    = 1049
	errorDatabaseRight = 1044
	errorFull          = 1114
	errorDisk          = 1021
	errorRouter        = 4501 // of MySQL Router
	errorNoThread      = 1094 // KILL: no session has this number
	errorNotOwner      = 1095 // KILL: the session is another user's
	errorInterrupted   = 1317 // by KILL QUERY
)

// number is that of the server's error, or 0. An error of a proxy says no more than a broken connection: the server may have carried the packet out.
func number(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok && !ofProxy(e) {
		return e.Number
	}
	return 0
}

// ofProxy reports whether a proxy cannot reach the server, or lost it. It answers with an error of clients then, of 2000 to 2999, which no server
// sends: MySQL Router with 2003.
func ofProxy(e *mysql.MySQLError) bool { return e.Number/1000 == 2 }

// again reports whether the server has certainly not carried out the transaction, and may do so at once.
func again(err error) bool {
	switch number(err) {
	case errorDeadlock, errorLockWait, errorChanged, errorNowait:
		return true
	}
	return false
}

// suspicious reports whether the server must be checked after this error.
func suspicious(err error) bool {
	switch number(err) {
	case 0:
		return !errors.Is(err, context.Canceled)
	case errorSubqueryRows, errorReadOnly, errorReadOnlyMode, errorNoTable, errorAccess, errorNoRight, errorReadOnlyTrans, errorRouter:
		return true
	}
	return false
}

// explain says in words what an operator must do.
func explain(err error) error {
	switch number(err) {
	case errorSubqueryRows:
		return errMoved
	case errorReadOnly, errorReadOnlyMode, errorReadOnlyTrans:
		return fmt.Errorf("the database refuses to write: is it a replica? %w", err)
	case errorNoRight:
		return fmt.Errorf("the user of the store's URL lacks rights, see deploy/mysql-roles.sql: %w", err)
	case errorAccess, errorNoDatabase, errorDatabaseRight:
		return fmt.Errorf("the database refuses the user of the store's URL: %w", err)
	case errorRouter:
		return fmt.Errorf("the store's URL leads to a MySQL Router that shares connections, and so forbids several statements in a packet: "+
			"set connection_sharing=0 for the route of the sidecars: %w", err)
	case errorFull, errorDisk:
		return fmt.Errorf("the database has no space left, so nothing new is granted: %w", err)
	}
	return err
}

// NeedsOperator reports whether a migration failed because of the user, the user's rights or the database of the URL.
func NeedsOperator(err error) bool {
	switch number(err) {
	case errorAccess, errorNoDatabase, errorDatabaseRight, errorNoRight, errorReadOnly:
		return true
	}
	return false
}

// Unreachable reports whether a migration failed because the server could not be reached.
func Unreachable(err error) bool {
	_, unreachable := errors.AsType[*net.OpError](err)
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return unreachable || ok && ofProxy(e) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn)
}
