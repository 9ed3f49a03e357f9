package mysqltest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ProgramsVariable is the variable that names a folder with MySQL's programs: mysqld, mysql, mysqldump and mysqlrouter. Then
// servers are MySQL's. Without it they are MariaDB's, from the path.
const ProgramsVariable = "LOCKSIDECAR_TEST_MYSQL"

// IsMySQL reports whether servers are MySQL's.
func IsMySQL() bool { return os.Getenv(ProgramsVariable) != "" }

// program is the path of a program of MySQL's, or the name of MariaDB's.
func program(mysql, maria string) string {
	if folder := os.Getenv(ProgramsVariable); folder != "" {
		return filepath.Join(folder, mysql)
	}
	return maria
}

func serverProgram() string { return program("mysqld", "mariadbd") }
func clientProgram() string { return program("mysql", "mariadb") }
func dumpProgram() string   { return program("mysqldump", "mariadb-dump") }

// installed returns an error that names what to install, if a program is missing.
func installed() error {
	needed := []string{serverProgram()}
	if !IsMySQL() {
		needed = append(needed, "mariadb-install-db")
	}
	for _, name := range needed {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if IsMySQL() {
			return fmt.Errorf("mysqltest: %s, from the folder of %s, is not a program: `test/servers.sh mysql` gets MySQL's programs", name, ProgramsVariable)
		}
		return errMissing
	}
	return nil
}

// install is the command that makes a server's data, with a root without a password.
func install(data string, flags ...string) *exec.Cmd {
	if IsMySQL() {
		return exec.Command(serverProgram(), append([]string{"--no-defaults", "--initialize-insecure", "--datadir=" + data}, flags...)...)
	}
	return exec.Command("mariadb-install-db", append([]string{
		"--no-defaults", "--datadir=" + data, "--skip-test-db", "--skip-name-resolve", "--auth-root-authentication-method=normal",
	}, flags...)...)
}

// small are the flags of servers that cost little.
func small() (always, run []string) {
	if IsMySQL() {
		return []string{"--innodb-redo-log-capacity=16M"}, []string{"--mysqlx=OFF", "--secure-file-priv=NULL"}
	}
	return []string{"--innodb-log-file-size=8M"}, []string{"--aria-pagecache-buffer-size=1M"}
}

// rename lets a stopped server's data be those of another server, as a replica's are. id is MariaDB's name of it; MySQL makes one.
func (m *Server) rename(id int) error {
	m.args = append(m.args, fmt.Sprintf("--server-id=%d", id))
	if err := os.Remove(filepath.Join(m.data(), "auto.cnf")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("mysqltest: %w", err)
	}
	return nil
}
