// Package etcdtest runs throwaway etcd clusters for tests: real servers, because a fake one proves
// nothing about locking.
//
// A test package starts one server in TestMain, and each test uses a prefix of its own. A test that
// kills, freezes or compacts its server starts its own with [Start].
//
// The servers are processes of the binary that `test/deps.sh etcd` builds. On a machine without it, tests fail
// and name this target, because a skipped test proves nothing.
//
// A server ends with the test process: on Linux the kernel kills it when the process dies. A folder that
// is left behind is removed by the next run.
package etcdtest
