package postgres

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/store/postgres/queries"
)

// unloaded are the statements that no variable has yet.
var unloaded = queries.All()

var (
	sqlAcquireMany         = load("acquire_many")
	sqlAcquireOne          = load("acquire_one")
	sqlAmend               = load("amend")
	sqlNotifyEvents        = load("notify_events")
	sqlAsk                 = load("ask")
	sqlReapContended       = load("reap_contended")
	sqlReapWatchers        = load("reap_watchers")
	sqlReapWaiters         = load("reap_waiters")
	sqlLeaseExisting       = load("lease_existing")
	sqlReapHints           = load("reap_hints")
	sqlReapMany            = load("reap_many")
	sqlReapOne             = load("reap_one")
	sqlCancelMany          = load("cancel_many")
	sqlCancelOne           = load("cancel_one")
	sqlCheck               = load("check")
	sqlConnectionCheck     = load("connection_check")
	sqlConnectionSetUp     = load("connection_set_up")
	sqlElect               = load("elect")
	sqlHandOff             = load("hand_off")
	sqlLeaseLiving         = load("lease_living")
	sqlLeaseOpen           = load("lease_open")
	sqlLeaseRenew          = load("lease_renew")
	sqlLeaseRenewOne       = load("lease_renew_one")
	sqlLeasesOf            = load("leases_of")
	sqlList                = load("list")
	sqlLocked              = load("locked")
	sqlNewEpoch            = load("new_epoch")
	sqlNotify              = load("notify")
	sqlOutdate             = load("outdate")
	sqlPrimary             = load("primary")
	sqlRead                = load("read")
	sqlReconciled          = load("reconciled")
	sqlRelease             = load("release")
	sqlReleaseMany         = load("release_many")
	sqlReleaseOne          = load("release_one")
	sqlHeldUnder           = load("held_under")
	sqlHeldUnderAfter      = load("held_under_after")
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
	sqlNotifyGrants        = load("notify_grants")
	sqlNoteDelivery        = load("note_delivery")
	sqlWithdraw            = load("withdraw")
	sqlUnwatch             = load("unwatch")
	sqlWatch               = load("watch")
	sqlWhereabouts         = load("whereabouts")
)

// statement is a statement of SQL, and the name by which figures and spans know it.
type statement struct{ name, sql string }

// mark begins each statement of this package, with its name and markEnd behind it.
const (
	mark    = "/* locksidecar:"
	markEnd = " */ "
)

// versionMark stands in statements for the schema that this package was written for.
const versionMark = ":schema_version"

// load takes a statement, once. The mark with its name is for those who read pg_stat_activity.
func load(name string) statement {
	text, ok := unloaded[name]
	if !ok {
		panic(fmt.Sprintf("store/postgres: there is no other statement %q", name)) // every test would see it
	}
	delete(unloaded, name)
	return statement{name: name, sql: mark + name + markEnd + strings.ReplaceAll(text, versionMark, strconv.Itoa(schemaVersion))}
}
