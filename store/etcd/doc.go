// Package etcd keeps locks in etcd 3.5.13 or later. It is a [cas.Backend]: package cas decides, this
// package swaps records.
//
// # Keys
//
// All keys begin with the prefix of the URL, /locksidecar/ by default. KEY is a key of package cas, which contains
// the namespace. Names of instances are escaped, so they may contain a slash.
//
//	k/KEY              a record: the leases that it names, and data of package cas
//	l/UUID             a lease: it lives as long as this key exists
//	o/INSTANCE/UUID    the same lease, found by the instance that opened it
//	m/INSTANCE/KEY     the last letter about a key to an instance
//
// Only l/ and o/ are attached to a lease of etcd. Its number comes from the UUID's first half. etcd refuses a
// whole transaction if one put names a lease that is gone, so records and letters name no lease of etcd.
//
// # Swaps
//
// A call's swaps go into one transaction. A swap's conditions are the record's ModRevision, and for each lease whether
// l/UUID exists. First all swaps are tried together: all conditions must hold, and nothing is done if one fails. That
// costs etcd least, and is the usual case. If it fails, each swap follows as a nested transaction with conditions of its
// own, which reads the present record if they fail. The states of its leases follow in a further request. After a
// failure, swaps go into nested transactions at once, until some in a row have succeeded.
//
// A record's version is its ModRevision. It is also where tokens come from (Record.Base), because revisions
// grow through deletions, restarts and changes of the leader. They do not grow if a backup is restored. Then
// etcd must be told to add to them (etcdutl snapshot restore --bump-revision). A sidecar that sees the
// revision fall refuses to work.
//
// # Letters
//
// A letter is a put that a watch of the instance's mailbox reports, in the order of revisions. A watch that broke
// resumes at the next revision. If etcd has compacted that revision, letters may be lost, and the backend says
// so. A letter need not be kept for its reader, because the watch reads history. So every instance deletes the
// letters that are older than its last look, also those to instances that are gone.
//
// # Connections
//
// The messages are generated from the part of etcd's API that is used (internal/etcdpb), and gRPC's own round robin
// chooses a server. etcd's client library would register its whole API when the process starts, also in sidecars
// with another store: 3.5 MB of memory and 2.7 MB of the binary (make build, VmRSS after 2 s).
//
// # Servers
//
// A request goes to one of the endpoints that answered the last check. A check is made regularly, and when a
// request fails or is slow. So a frozen server costs about a second. Reads and renewals are repeated on another
// server; a swap is not, because its outcome is unknown. If it certainly was not sent, or if etcd refused
// it, the outcome is known.
package etcd
