package postgres

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed sql/*.sql
var statementFiles embed.FS

// The statements, by the names of their files.
var (
	sqlAcquireMany     = statement("acquire_many")
	sqlAcquireOne      = statement("acquire_one")
	sqlAmend           = statement("amend")
	sqlAnnounce        = statement("announce")
	sqlAsk             = statement("ask")
	sqlBuryContended   = statement("bury_contended")
	sqlBuryDropSignals = statement("bury_drop_signals")
	sqlBuryDropWaiters = statement("bury_drop_waiters")
	sqlBuryExisting    = statement("bury_existing")
	sqlBuryHints       = statement("bury_hints")
	sqlBuryMany        = statement("bury_many")
	sqlBuryOne         = statement("bury_one")
	sqlCancelMany      = statement("cancel_many")
	sqlCancelOne       = statement("cancel_one")
	sqlCheck           = statement("check")
	sqlConnectionCheck = statement("connection_check")
	sqlConnectionSetUp = statement("connection_set_up")
	sqlHandOff         = statement("hand_off")
	sqlLeaseLiving     = statement("lease_living")
	sqlLeaseOpen       = statement("lease_open")
	sqlLeaseRenew      = statement("lease_renew")
	sqlLeaseRenewOne   = statement("lease_renew_one")
	sqlLeasesOf        = statement("leases_of")
	sqlList            = statement("list")
	sqlLocked          = statement("locked")
	sqlNewEpoch        = statement("new_epoch")
	sqlNotify          = statement("notify")
	sqlRead            = statement("read")
	sqlRelease         = statement("release")
	sqlReleaseMany     = statement("release_many")
	sqlReleaseOne      = statement("release_one")
	sqlSchemaExists    = statement("schema_exists")
	sqlSchemaVersion   = statement("schema_version")
	sqlServer          = statement("server")
	sqlSignal          = statement("signal")
	sqlSignalsHeard    = statement("signals_heard")
	sqlSignalsOf       = statement("signals_of")
	sqlSweepDangling   = statement("sweep_dangling")
	sqlSweepFree       = statement("sweep_free")
	sqlSweepLeases     = statement("sweep_leases")
	sqlSweepSignals    = statement("sweep_signals")
	sqlSweepWaiters    = statement("sweep_waiters")
	sqlSweepWatched    = statement("sweep_watched")
	sqlTold            = statement("told")
	sqlUndo            = statement("undo")
	sqlUnwatch         = statement("unwatch")
	sqlWatch           = statement("watch")
)

// statement reads a statement and puts its name in place of its comments, for
// who reads pg_stat_activity at 3 a.m.
func statement(name string) string {
	text, err := statementFiles.ReadFile("sql/" + name + ".sql")
	if err != nil {
		panic(fmt.Sprintf("store/postgres: %v", err)) // embedded: cannot be missing
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for len(lines) > 0 && strings.HasPrefix(lines[0], "--") {
		lines = lines[1:]
	}
	return "/* locksidecar:" + name + " */ " + strings.Join(lines, "\n")
}
