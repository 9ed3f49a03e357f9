// Package redistest runs throwaway Redis servers for tests: real ones, because a fake one proves nothing about
// replication and failovers.
//
//	server := redistest.Start(t)                    // one server, which nobody else uses
//	group := redistest.StartSentinel(t)             // a master, a replica and a sentinel
//	cluster := redistest.StartCluster(t)            // three masters with a replica each
//
// The servers are processes of redis-server, or of the program that [ServerVariable] names, which is also the sentinel. Clusters are made
// with redis-cli (Debian: redis-server, redis-tools). On a machine without them, tests fail.
package redistest
