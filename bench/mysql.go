package main

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"

	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
)

// mariaDB is a server with a database for sidecars, beside which people lock with tables.
type mariaDB struct {
	*process
	url    string
	db     *sql.DB
	rivals []rival
	end    func()
}

// startMariaDB starts it with its default durability, and a log of the default size.
func startMariaDB() (*mariaDB, error) {
	server, err := mysqltest.Run(mysqltest.OnDisk(), mysqltest.WithFlag("--innodb-log-file-size=96M"), mysqltest.WithFlag("--innodb-buffer-pool-size=128M"),
		mysqltest.WithFlag("--max-connections=2000"))
	if err != nil {
		return nil, err
	}
	m, err := onMariaDB(server)
	if err != nil {
		server.Stop()
	}
	return m, err
}

func onMariaDB(server *mysqltest.Server) (*mariaDB, error) {
	database, err := server.MakeDatabase()
	if err != nil {
		return nil, err
	}
	running, err := os.FindProcess(server.Pid())
	if err != nil {
		return nil, err
	}
	db, err := server.Connect(database.Name)
	if err != nil {
		return nil, err
	}
	address := fmt.Sprintf("%[1]s:%[1]s@tcp(%[2]s)/%[1]s", database.Name, server.Address)
	return &mariaDB{
		process: &process{cmd: &exec.Cmd{Process: running}}, url: database.URL(), db: db,
		rivals: []rival{
			{name: "a table: INSERT … ON DUPLICATE KEY UPDATE, DELETE", args: []string{"mysql", address}},
			{name: "row locks: SELECT … FOR UPDATE, COMMIT", args: []string{"mysql-rows", address}},
		},
		end: func() { _ = db.Close(); server.Stop() },
	}, nil
}

// stop ends the server.
func (m *mariaDB) stop() { m.end() }

// mysql measures what P2, P3, P6 and P10 measure, with the sidecar on MariaDB, beside what people do with tables.
func (b *bench) mysql() ([]result, error) {
	m, err := startMariaDB()
	if err != nil {
		return nil, err
	}
	o := &beside{id: "mysql", name: "MariaDB", url: m.url, server: m.process, rivals: m.rivals, ends: []func(){m.stop}}
	defer o.stop()
	o.position = func() (n int64, err error) { // the version of the key's record
		err = m.db.QueryRow("SELECT COALESCE(MAX(version), 0) FROM locksidecar_locks WHERE name = ?", "default/"+handOffKey).Scan(&n)
		return n, err
	}
	if err := o.start(b); err != nil {
		return nil, err
	}
	return o.measure(b, 1.2, 64, 256)
}
