package mysqltest

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Replicates are the flags of servers that may be each other's replica. Their ids must differ.
func Replicates(id int) Option {
	return func(s *settings) {
		s.flags = append(s.flags, fmt.Sprintf("--server-id=%d", id), "--log-bin=bin", "--binlog-format=ROW", "--sync-binlog=1", "--log-slave-updates",
			"--slave-net-timeout=2")
	}
}

const replicator = "CREATE USER IF NOT EXISTS replicator IDENTIFIED BY 'replicator'; GRANT REPLICATION SLAVE ON *.* TO replicator"

// Follow makes a server an asynchronous, read-only replica of another one, from a new copy of a database.
func (m *Server) Follow(ctx context.Context, primary *Server, database string) error {
	if err := primary.Do(ctx, "SET SESSION sql_log_bin = 0; "+replicator); err != nil {
		return err
	}
	if err := m.Do(ctx, "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = ON; SET SESSION sql_log_bin = 0; DROP DATABASE IF EXISTS "+
		database+"; RESET MASTER; SET GLOBAL gtid_slave_pos = ''"); err != nil {
		return err
	}
	copied, err := exec.CommandContext(ctx, "mariadb-dump", "--no-defaults", "--user=root", "--socket="+primary.socket(), "--single-transaction",
		"--gtid", "--master-data=1", "--databases", database).Output()
	if err != nil {
		return fmt.Errorf("mysqltest: mariadb-dump: %w", err)
	}
	restore := exec.CommandContext(ctx, "mariadb", "--no-defaults", "--user=root", "--socket="+m.socket(), "--init-command=SET SESSION sql_log_bin = 0")
	restore.Stdin = strings.NewReader(string(copied))
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("mysqltest: the copy: %w\n%s", err, out)
	}
	host, port, _ := strings.Cut(primary.Address, ":")
	return m.Do(ctx, fmt.Sprintf("CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %s, MASTER_USER = 'replicator', MASTER_PASSWORD = 'replicator', "+
		"MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1; START SLAVE", host, port))
}

// Deafen stops a replica from receiving what its primary writes. It applies what it has received.
func (m *Server) Deafen(ctx context.Context) error { return m.Do(ctx, "STOP SLAVE IO_THREAD") }

// Promote makes a replica a server that takes writes, after it has applied what it received.
func (m *Server) Promote(ctx context.Context) error {
	if err := m.Do(ctx, "STOP SLAVE IO_THREAD"); err != nil {
		return err
	}
	for { // until the relay log is applied
		applied, err := m.applied(ctx)
		if err != nil {
			return err
		}
		if applied {
			break
		}
	}
	return m.Do(ctx, "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = OFF")
}

// applied reports whether all that was received is carried out.
func (m *Server) applied(ctx context.Context) (bool, error) {
	db, err := m.Connect("")
	if err != nil {
		return false, err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(ctx, "SHOW SLAVE STATUS")
	if err != nil {
		return false, err
	}
	defer func() { _ = rows.Close() }()
	names, err := rows.Columns()
	if err != nil || !rows.Next() {
		return true, err
	}
	values, into := make([][]byte, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	if err := rows.Scan(into...); err != nil {
		return false, err
	}
	status := map[string]string{}
	for i, name := range names {
		status[name] = string(values[i])
	}
	if status["Last_SQL_Errno"] != "0" {
		return false, fmt.Errorf("mysqltest: replication: %s", status["Last_SQL_Error"])
	}
	return status["Master_Log_File"] == status["Relay_Master_Log_File"] && status["Read_Master_Log_Pos"] == status["Exec_Master_Log_Pos"], nil
}
