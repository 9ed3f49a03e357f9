package mysqltest

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// replication is how a product names what has to do with replicas.
type replication struct {
	flags                  []string
	replica, reset, status string // REPLICA or SLAVE; what forgets the own log; the statement that tells how far a replica is
	dump                   []string
	source                 string // what a replica follows, of an address
}

func replicationOf() replication {
	if IsMySQL() { // 8.4 or later
		return replication{
			flags:   []string{"--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--replica-net-timeout=2"},
			replica: "REPLICA", reset: "RESET BINARY LOGS AND GTIDS", status: "SHOW REPLICA STATUS",
			dump: []string{"--set-gtid-purged=ON"},
			source: "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '%s', SOURCE_PORT = %s, SOURCE_USER = 'replicator', SOURCE_PASSWORD = 'replicator', " +
				"SOURCE_AUTO_POSITION = 1, SOURCE_CONNECT_RETRY = 1, GET_SOURCE_PUBLIC_KEY = 1",
		}
	}
	return replication{
		flags:   []string{"--binlog-format=ROW", "--log-slave-updates", "--slave-net-timeout=2"},
		replica: "SLAVE", reset: "RESET MASTER; SET GLOBAL gtid_slave_pos = ''", status: "SHOW SLAVE STATUS",
		dump: []string{"--gtid", "--master-data=1"},
		source: "CHANGE MASTER TO MASTER_HOST = '%s', MASTER_PORT = %s, MASTER_USER = 'replicator', MASTER_PASSWORD = 'replicator', " +
			"MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
	}
}

// Replicates are the flags of servers that may be each other's replica. Their ids must differ.
func Replicates(id int) Option {
	return func(s *settings) {
		s.flags = append(s.flags, fmt.Sprintf("--server-id=%d", id), "--log-bin=bin", "--sync-binlog=1")
		s.flags = append(s.flags, replicationOf().flags...)
	}
}

const replicator = "CREATE USER IF NOT EXISTS replicator IDENTIFIED BY 'replicator'; GRANT REPLICATION SLAVE ON *.* TO replicator"

// Follow makes a server an asynchronous, read-only replica of another one, from a new copy of a database.
func (m *Server) Follow(ctx context.Context, primary *Server, database string) error {
	r := replicationOf()
	if err := primary.Do(ctx, "SET SESSION sql_log_bin = 0; "+replicator); err != nil {
		return err
	}
	if err := m.Do(ctx, fmt.Sprintf("STOP %[1]s; RESET %[1]s ALL; SET GLOBAL read_only = ON; SET SESSION sql_log_bin = 0; DROP DATABASE IF EXISTS %[2]s; %[3]s",
		r.replica, database, r.reset)); err != nil {
		return err
	}
	dump := append([]string{"--no-defaults", "--user=root", "--socket=" + primary.socket(), "--single-transaction"}, r.dump...)
	copied, err := exec.CommandContext(ctx, dumpProgram(), append(dump, "--databases", database)...).Output()
	if err != nil {
		return fmt.Errorf("mysqltest: %s: %w", dumpProgram(), err)
	}
	restore := exec.CommandContext(ctx, clientProgram(), "--no-defaults", "--user=root", "--socket="+m.socket(), "--init-command=SET SESSION sql_log_bin = 0")
	restore.Stdin = strings.NewReader(string(copied))
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("mysqltest: the copy: %w\n%s", err, out)
	}
	host, port, _ := strings.Cut(primary.Address, ":")
	return m.Do(ctx, fmt.Sprintf(r.source+"; START "+r.replica, host, port))
}

// Deafen stops a replica from receiving what its primary writes. It applies what it has received.
func (m *Server) Deafen(ctx context.Context) error {
	return m.Do(ctx, "STOP "+replicationOf().replica+" IO_THREAD")
}

// Promote makes a replica a server that takes writes, after it has applied what it received.
func (m *Server) Promote(ctx context.Context) error {
	if err := m.Do(ctx, "STOP "+replicationOf().replica+" IO_THREAD"); err != nil {
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
	return m.Do(ctx, fmt.Sprintf("STOP %[1]s; RESET %[1]s ALL; SET GLOBAL read_only = OFF", replicationOf().replica))
}

// applied reports whether all that was received is carried out.
func (m *Server) applied(ctx context.Context) (bool, error) {
	db, err := m.Connect("")
	if err != nil {
		return false, err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(ctx, replicationOf().status)
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
	if IsMySQL() { // positions never agree if the last transaction was received in part
		var all bool
		err := db.QueryRowContext(ctx, "SELECT GTID_SUBSET(?, @@global.gtid_executed)", status["Retrieved_Gtid_Set"]).Scan(&all)
		return all, err
	}
	return status["Master_Log_File"] == status["Relay_Master_Log_File"] && status["Read_Master_Log_Pos"] == status["Exec_Master_Log_Pos"], nil
}
