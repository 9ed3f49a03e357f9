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
	sqlAcquireMany     = load("acquire_many")
	sqlAcquireOne      = load("acquire_one")
	sqlAmend           = load("amend")
	sqlAnnounce        = load("announce")
	sqlAsk             = load("ask")
	sqlBuryContended   = load("bury_contended")
	sqlBuryUnwatch     = load("bury_unwatch")
	sqlBuryDropWaiters = load("bury_drop_waiters")
	sqlBuryExisting    = load("bury_existing")
	sqlBuryHints       = load("bury_hints")
	sqlBuryMany        = load("bury_many")
	sqlBuryOne         = load("bury_one")
	sqlCancelMany      = load("cancel_many")
	sqlCancelOne       = load("cancel_one")
	sqlCheck           = load("check")
	sqlConnectionCheck = load("connection_check")
	sqlConnectionSetUp = load("connection_set_up")
	sqlElect           = load("elect")
	sqlHandOff         = load("hand_off")
	sqlLeaseLiving     = load("lease_living")
	sqlLeaseOpen       = load("lease_open")
	sqlLeaseRenew      = load("lease_renew")
	sqlLeaseRenewOne   = load("lease_renew_one")
	sqlLeasesOf        = load("leases_of")
	sqlList            = load("list")
	sqlLocked          = load("locked")
	sqlNewEpoch        = load("new_epoch")
	sqlNotify          = load("notify")
	sqlOutdate         = load("outdate")
	sqlPrimary         = load("primary")
	sqlRead            = load("read")
	sqlRecounted       = load("recounted")
	sqlRelease         = load("release")
	sqlReleaseMany     = load("release_many")
	sqlReleaseOne      = load("release_one")
	sqlRiders          = load("riders")
	sqlRidersAfter     = load("riders_after")
	sqlSchemaExists    = load("schema_exists")
	sqlSchemaVersion   = load("schema_version")
	sqlServer          = load("server")
	sqlSignal          = load("signal")
	sqlSignalsHeard    = load("signals_heard")
	sqlSignalsOf       = load("signals_of")
	sqlStats           = load("stats")
	sqlSweepLeft       = load("sweep_left")
	sqlSweepStep       = load("sweep_step")
	sqlSystem          = load("system")
	sqlTell            = load("tell")
	sqlTold            = load("told")
	sqlUndo            = load("undo")
	sqlUnwatch         = load("unwatch")
	sqlWatch           = load("watch")
	sqlWhereabouts     = load("whereabouts")
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
