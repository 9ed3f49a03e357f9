package main

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
)

// mysql measures what P2, P3, P6 and P10 measure, with the sidecar on MariaDB, beside what people do with tables. The server has
// its default durability, and a log of the default size.
func (b *bench) mysql() ([]result, error) {
	server, err := mysqltest.Run(mysqltest.OnDisk(), mysqltest.WithFlag("--innodb-log-file-size=96M"), mysqltest.WithFlag("--innodb-buffer-pool-size=128M"),
		mysqltest.WithFlag("--max-connections=2000"))
	if err != nil {
		return nil, err
	}
	o := &beside{id: "mysql", name: "MariaDB", ends: []func(){server.Stop}}
	defer o.stop()
	database, err := server.MakeDatabase()
	if err != nil {
		return nil, err
	}
	db, err := server.Connect(database.Name)
	if err != nil {
		return nil, err
	}
	o.ends = append(o.ends, func() { _ = db.Close() })
	running, err := os.FindProcess(server.Pid())
	if err != nil {
		return nil, err
	}
	o.url, o.server = database.URL(), &process{cmd: &exec.Cmd{Process: running}}
	address := fmt.Sprintf("%[1]s:%[1]s@tcp(%[2]s)/%[1]s", database.Name, server.Address)
	o.rivals = []rival{
		{name: "a table: INSERT … ON DUPLICATE KEY UPDATE, DELETE", args: []string{"mysql", address}},
		{name: "row locks: SELECT … FOR UPDATE, COMMIT", args: []string{"mysql-rows", address}},
	}
	o.position = func() (n int64, err error) { // the version of the key's record
		err = db.QueryRow("SELECT COALESCE(MAX(version), 0) FROM locksidecar_locks WHERE name = ?", "default/"+handOffKey).Scan(&n)
		return n, err
	}
	if err := o.start(b); err != nil {
		return nil, err
	}
	return o.measure(b, 1.2, 64, 256)
}
