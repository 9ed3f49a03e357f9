package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/store/postgres/queries"
)

// unloaded contains the statements that are not assigned to a variable yet.
var unloaded = queries.All()

var (
	sqlAcquireMany         = load("acquire_many")
	sqlAcquireSession      = load("acquire_session")
	sqlAcquireOne          = load("acquire_one")
	sqlAcquireRow          = load("acquire_row")
	sqlAcquireRows         = load("acquire_rows")
	sqlAdopt               = load("adopt")
	sqlAmend               = load("amend")
	sqlAsk                 = load("ask")
	sqlCancelMany          = load("cancel_many")
	sqlCancelOne           = load("cancel_one")
	sqlCheck               = load("check")
	sqlConnectionCheck     = load("connection_check")
	sqlConnectionSetUp     = load("connection_set_up")
	sqlDowngrade           = load("downgrade")
	sqlElect               = load("elect")
	sqlHandOff             = load("hand_off")
	sqlHeldUnder           = load("held_under")
	sqlLeaseExisting       = load("lease_existing")
	sqlLeaseLiving         = load("lease_living")
	sqlLeaseOpen           = load("lease_open")
	sqlLeaseRenew          = load("lease_renew")
	sqlLeaseRenewOne       = load("lease_renew_one")
	sqlLeasesOf            = load("leases_of")
	sqlList                = load("list")
	sqlListAsReader        = load("list_as_reader")
	sqlLocked              = load("locked")
	sqlMove                = load("move")
	sqlNewHistory          = load("new_history")
	sqlNextToken           = load("next_token")
	sqlNoteDelivery        = load("note_delivery")
	sqlNotify              = load("notify")
	sqlNotifyEvents        = load("notify_events")
	sqlNotifyGrants        = load("notify_grants")
	sqlOutdate             = load("outdate")
	sqlPrimary             = load("primary")
	sqlRaiseTokens         = load("raise_tokens")
	sqlRead                = load("read")
	sqlReapMany            = load("reap_many")
	sqlReapOne             = load("reap_one")
	sqlReapRest            = load("reap_rest")
	sqlReapWaited          = load("reap_waited")
	sqlRelease             = load("release")
	sqlReleaseMany         = load("release_many")
	sqlReleaseOne          = load("release_one")
	sqlSchemaExists        = load("schema_exists")
	sqlSchemaVersion       = load("schema_version")
	sqlServer              = load("server")
	sqlSignal              = load("signal")
	sqlSignalsAcknowledged = load("signals_acknowledged")
	sqlSignalsOf           = load("signals_of")
	sqlStats               = load("stats")
	sqlSweepLeft           = load("sweep_left")
	sqlSweepStep           = load("sweep_step")
	sqlSystem              = load("system")
	sqlUnwatch             = load("unwatch")
	sqlWaiting             = load("waiting")
	sqlWatch               = load("watch")
	sqlWhereabouts         = load("whereabouts")
	sqlWithdraw            = load("withdraw")
)

// statement is an SQL statement with its name for metrics and spans.
type statement struct {
	name, sql string
	then      *follower // nil: nothing follows it
}

// followedBy returns the statement with what follows it, or the statement alone for nil.
func (s statement) followedBy(f *follower) statement {
	s.then = f
	return s
}

// mark begins each statement, for readers of pg_stat_activity. The name and markEnd follow.
const (
	mark    = "/* locksidecar:"
	markEnd = " */ "
)

// versionMark is replaced by the schema version that this package was written for.
const versionMark = ":schema_version"

// load takes a statement, which must not be taken twice.
func load(name string) statement {
	text, ok := unloaded[name]
	if !ok {
		panic(fmt.Sprintf("store/postgres: there is no other statement %q", name)) // every test would fail
	}
	delete(unloaded, name)
	return statement{name: name, sql: mark + name + markEnd + strings.ReplaceAll(text, versionMark, strconv.Itoa(schemaVersion))}
}
