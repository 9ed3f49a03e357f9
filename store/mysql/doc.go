// Package mysql keeps locks in MySQL 8 or in MariaDB 10.6 or later. It is a [cas.Backend]: package cas decides, this package
// swaps records. The tables are in schema, the statements in queries.sql.
//
// # Requests
//
// Each operation is one packet: a text of several statements, a whole transaction with its own isolation level, from ROLLBACK to
// COMMIT. So a sidecar that is frozen between two statements keeps no row locked, because the server needs it for
// nothing. And nothing of a session is needed from one packet to the next, so a pooler may give each packet another session.
// The server carries out the statements of a packet until one fails. If the answer that comes before COMMIT did not
// arrive and the server reports an error, the transaction certainly was not carried out. If the connection broke, the
// outcome is unknown.
//
// # Swaps
//
// A swap locks the record, then the leases on which it relies (shared), and then writes the record on a condition: the version is
// unchanged, and these leases live. The statement that writes comes after the locks and judges by its own start whether they do. A
// call's swaps go into one packet. It has one statement that writes all records which exist, and one that makes the others,
// because a statement costs the server more than a row. The conditions of a statement are those of all its swaps. If they do not
// hold, nothing is written, and the swaps are divided into two packets. Swaps with the same conditions stay together. Records are
// locked in the order of their names, leases in that of their ids, and leases after records, so swaps do not lock each other out. Nor do
// renewals, which first lock all their leases in that order.
// Rare deadlocks remain, when several packets make the same record. They are repeated, because the server has rolled one of them back.
//
// Nobody waits for the row of a record, because such a wait would keep a connection and the other rows of the packet. If
// another session has the row, the packet fails, the others of the call go on without this one, and it is tried again
// after a pause. If the row stays locked, the swap is answered as Locked, and store/cas tries one that is alone for a second. So an open
// transaction of an operator stalls only its keys.
//
// A record's version is also where its tokens come from (Record.Base): the last version and its tokens, or the server's
// clock, whichever is greater. A deletion notes the tokens of the record in meta, so tokens grow also if the
// clock was set back since.
//
// # Leases
//
// A lease is a row with the time of its end. Death must be final, and a clock may be set back. So whoever finds a
// lease expired deletes its row, and says that it is dead only after this commit.
//
// # Disk
//
// InnoDB shows a commit to others before the disk has it. The answer to a swap comes later, and what a later commit
// confirms includes all that it has seen. But a grant that an instance only reads may be forgotten in a crash, so an answer that relies on it waits for a
// commit of its own (Confirm), and a letter is deleted before it is delivered.
//
// # Letters
//
// A letter is a row with a growing id. Rows are deleted after they were read.
// A row with a smaller id may be committed later than one with a greater id, so a reader must not remember only the last id.
//
// # News
//
// The server pushes nothing by itself. So an instance that expects letters ([cas.Expecter]) sleeps in a session of its own, and whoever has
// committed a letter for it ends this sleep with KILL QUERY, which each user may do to its own sessions: see sleeper.go and wake.go.
//
// No wake is lost. The statement that sleeps first takes a lock of its own (GET_LOCK). The instance looks into the mailbox by another
// connection, in a statement after one that sees this lock. A letter that this look does not find is committed later, so its KILL QUERY comes when the
// statement that sleeps has begun. Either it ends the statement, or the statement has ended before, and each end of a sleep is followed by a look.
//
// No wake hits anybody else. The sleeper's session has a lock whose name comes from the name of the instance, and KILL QUERY IS_USED_LOCK(name) finds the
// session and kills its query in one statement. So a number that another session has got meanwhile is never used. The session does nothing but sleep until it
// ends. It is in a transaction, so no pooler may give it to somebody else, and an instance that finds a pooler before its server does not
// sleep at all: the number in the server's greeting is not that of the session then. If all that failed, a statement that is killed is
// repeated like one that was chosen in a deadlock.
//
// The sleep reads no table. So it keeps no snapshot, which would stop the purge of old rows, and no table's metadata lock, for which an ALTER TABLE or
// a backup would wait. The session does not wait in SLEEP, but for a lock that the connection for the mailbox has: see queries.sql.
//
// The wake goes with the packet of the swap, behind COMMIT, once the instance has proven that it can wake itself so. What a KILL QUERY
// answers says nothing about the swap. Further readers are woken by packets of their own.
//
// An instance that cannot be woken polls for a while, and tries again: behind a pooler, if it may not connect, if its session was ended, if
// it cannot wake itself, or if it has missed a letter because the writer may not wake it. Then it finds the letter when the sleep ends. An
// instance relies on hearing letters (Hears) only while a sleep has ended or begun as it should within the last seconds, or a poll has. For
// recalls alone it does not poll often, and so does not rely on polls.
//
// # History
//
// An asynchronous replica that is promoted may have forgotten grants. meta has the name of the server that wrote it:
// server_uuid on MySQL, server_id on MariaDB, which has no other name that stays through restarts. Replication demands
// that replicas have different ids. Each packet begins with a guard that fails on another server. The first sidecar
// that sees one begins a new history, and a quiet time: nothing is granted for the longest TTL in use, unless the configuration says
// that a failover forgets nothing.
//
// An old primary that comes back still acts as one, also on connections that were open all the time. Histories are ordered by
// when they began, so the guard of a sidecar that has seen a later one fails there. The sidecar notes this on the old
// server, and then the guards of all sidecars fail. A sidecar that reaches the old server alone, before others have
// marked it, is not helped: whoever promotes a replica must cut the old primary off.
package mysql
