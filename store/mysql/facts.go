package mysql

import "maps"

// tell notes what the server is and how durable a grant is, for GET /readyz, and logs it if it is news.
func (b *Server) tell(settings map[string]string) {
	durability := "on the disk of one server"
	if settings["innodb_flush_log_at_trx_commit"] != "1" {
		durability = "in a log that is written later"
	}
	found := map[string]string{"durability": durability}
	for _, name := range []string{"version", "innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog"} {
		if value := settings[name]; value != "" {
			found[name] = value
		}
	}
	if before := b.Tell(found); !maps.Equal(before, found) {
		b.Log.Info("the database keeps the locks", "durability", durability, "version", found["version"], "log_bin", found["log_bin"], "sync_binlog", found["sync_binlog"])
	}
}
