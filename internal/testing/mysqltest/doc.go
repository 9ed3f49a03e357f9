// Package mysqltest runs throwaway MariaDB servers for tests: real ones, because a fake one proves nothing about locking.
//
// A test package starts one server in TestMain, and each test makes a database of its own. A test that kills, freezes or
// restarts its server starts its own with [Start].
//
// The programs are those of Debian's package mariadb-server. On a machine without them, tests fail and name the package,
// because a skipped test proves nothing. As root, the server runs as the user mysql.
package mysqltest
