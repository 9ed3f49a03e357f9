// Package pgtest runs throwaway PostgreSQL clusters for tests, benchmarks and
// end-to-end runs: a real server, because a fake one proves nothing about locking.
//
// A test package starts one cluster in TestMain and gives every test a database
// of its own:
//
//	var cluster *pgtest.Cluster
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, &cluster)) }
//
//	func TestSomething(t *testing.T) {
//		url := cluster.NewDatabase(t)
//		...
//	}
//
// A test that stops or kills its server starts its own with [Start]. The package pgroles has the
// option that gives databases the schema and uses them with the rights of sidecars.
//
// The server's programs are searched in PATH and in the folders of common packages. On a machine
// without them, tests fail and say what to install, because a skipped test proves nothing.
// PostgreSQL refuses to run as root, so root's clusters run as the user "postgres".
//
// initdb runs once in a process. Each cluster starts with a copy, which gets its own identifier.
// [InMemory] puts a cluster into memory, where its many small files are cheap.
//
// A cluster ends with the test process: on Linux the kernel stops the server when the process dies.
// A folder that is left behind is removed by the next run.
package pgtest
