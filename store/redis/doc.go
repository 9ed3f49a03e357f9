// Package redis keeps locks in Redis 7 or later, or in Valkey: one server, a master that sentinels choose, or a cluster.
// It is a [cas.Backend]: package cas decides, this package swaps records.
//
// # Keys
//
// All keys begin with locksidecar:{p}:, where p is the partition. One server has one partition. A cluster has sixteen,
// whose slots are spread evenly. A record's partition follows from the hash of its key. A lease is in all partitions,
// because each swap finds its leases beside the record. KEY is a key of package cas, which contains the namespace.
//
//	k:KEY         a record: its version, the leases that it names, and data of package cas
//	i             the keys of all records, in the order of their bytes
//	l:UUID        a lease, which the server deletes when it ends (PX)
//	o:INSTANCE    the leases that an instance has opened
//	meta          the present history, and the TTLs of leases with the time of their last use: see below
//	absent        never exists
//
// # Functions
//
// The functions of functions.lua do everything. They are loaded when a server does not know them, under names with the hash of
// their text. A call names meta as its key. The functions make the names of the other keys, which are in the same slot.
//
// While a cluster moves a slot, some of its keys are on one server and some on the other, and a function would take a key that is not on its
// server for one that does not exist. So a call also names a key that never exists (absent). The cluster answers calls of two keys, one of which
// is missing, with TRYAGAIN on both servers until the slot has moved. They have no effect, and are repeated.
//
// # Swaps
//
// A record's version is also where its tokens come from: it is above the last version and its tokens, and at least the
// server's clock in microseconds. When a record is deleted, meta.floor keeps its version for all new records. After a new
// history, meta.from is ahead of the clock, and grows half as fast.
//
// # Histories
//
// Replication is asynchronous, and files may be written late. So a failover or a restart may lose what was confirmed. meta.run is
// the replication id of the server that wrote it. Redis makes a new one at each promotion and at each start. (The run id
// would miss a master that comes back after a failover and a full copy.) The functions look at it every 0.1 s, because a master that
// becomes a replica and is promoted again may have missed its successor, and then meta is its own. A function that sees another id
// than its server's begins a new history: versions and tokens jump by 2^30, about 18 minutes, and nothing is granted for the longest
// TTL in use. Which TTLs are in use is noted in meta, for as long as a lease of that TTL may live. Because it is one key with the history, a slot that is
// partly moved has both or neither. A slot that moves to another master looks the same as a promotion.
//
// Redis also makes a new id when a server gets its first replica, and an hour after it lost the last one. This is no new history if
// a function was called in the 0.5 s before.
//
// If the master of a slot that is partly moved is replaced, the new one of Redis does not know of the move. It takes the keys that were moved for lost,
// and its calls are not refused. Therefore it needs its quiet time: leases and records on the other server may hold what it grants. Valkey 8 tells
// replicas of moves. There the new master refuses calls, as the old one did, until somebody ends the move.
//
// If meta is missing, all is lost, or the server is new. Both look alike. Then tokens jump by 2^36, 19 hours, because jumps are
// forgotten, too. The quiet time lasts until the longest TTL that the callers know has passed since the server's start. If the library remembers that meta was there (FLUSHALL), or if the server was
// a replica before, it begins now.
//
// # Letters
//
// A letter is published within the swap. The server may drop it: then the reader's connection has broken, and the
// backend says so (lost) when it listens again. In a cluster, a letter travels from one server to another, and may also be lost there.
// Waiters check regularly, so a lost letter costs time only. A list per instance would keep letters, but a cluster would need one
// blocked connection for each partition, and somebody would have to delete the lists of those who are gone.
//
// # Outcomes
//
// A call that was sent and not answered may have been carried out. The client library repeats no such call. A call that Redis
// refuses before it begins has certainly done nothing: see refusals.
package redis
