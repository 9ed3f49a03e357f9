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
// A test that stops or kills its server starts one for itself with [Start]. The package
// pgroles has the option with which databases have a schema, and are used with no more
// rights than sidecars have.
//
// The server's programs are looked for in PATH and in the places where packages
// put them. A machine without them fails the tests and says what to install: a
// test that skips itself proves nothing either. PostgreSQL refuses to run as root,
// so root's clusters belong to the user "postgres".
//
// initdb runs once in a process: each cluster begins with a copy, which is given an identifier of
// its own. [InMemory] puts a cluster into memory, where its many small files cost little.
//
// A cluster ends with the test process, however that ends: on Linux the kernel
// stops the server when the process dies. A folder that was left behind all the
// same is removed by the next run.
package pgtest
