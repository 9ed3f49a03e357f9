package mysql

import "maps"

// tell notes what the server is and where it keeps a grant, for GET /readyz, and logs it if it is news.
func (b *Backend) tell(settings map[string]string) {
	kept := "on the disk of one server"
	if settings["innodb_flush_log_at_trx_commit"] != "1" {
		kept = "in a log that is written later"
	}
	found := map[string]string{"kept": kept}
	for _, name := range []string{"version", "innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog"} {
		if value := settings[name]; value != "" {
			found[name] = value
		}
	}
	if before := b.Tell(found); !maps.Equal(before, found) {
		b.Log.Info("the database keeps the locks", "where", kept, "version", found["version"], "log_bin", found["log_bin"], "sync_binlog", found["sync_binlog"])
	}
}
