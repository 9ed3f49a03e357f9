// Package mysqltest runs throwaway servers of MariaDB, or of MySQL, for tests: real ones, because a fake one proves nothing about locking.
//
// A test package starts one server in TestMain, and each test makes a database of its own. A test that kills, freezes or
// restarts its server starts its own with [Start].
//
// The programs are those of Debian's package mariadb-server, or MySQL's in the folder that [ProgramsVariable] names. On a machine
// without them, tests fail and name what is missing, because a skipped test proves nothing. As root, the server runs as the user mysql.
package mysqltest
