package postgres

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
)

//go:embed sql/*.sql
var statementFiles embed.FS

// The statements, by the names of their files.
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

// load reads a statement and puts its name in place of its comments, for who reads
// pg_stat_activity at 3 a.m.
func load(name string) statement {
	text, err := statementFiles.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(fmt.Sprintf("store/postgres: %v", err)) // embedded: cannot be missing
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for len(lines) > 0 && strings.HasPrefix(lines[0], "--") {
		lines = lines[1:]
	}
	sql := strings.ReplaceAll(strings.Join(lines, "\n"), versionMark, strconv.Itoa(schemaVersion))
	return statement{name: name, sql: mark + name + markEnd + sql}
}
