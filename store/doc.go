// Package store defines what a lock store must do. Its engines are
//
//   - store/memory, an embedded map,
//   - store/postgres, a PostgreSQL database, whose statements and functions decide, and
//   - store/cas, for a server that can swap a record if it is unchanged. Its backends are store/etcd, store/mysql (also MariaDB),
//     store/redis, and store/cas/fake for tests.
//
// memory and cas run the same key machine, store/key.
//
// # Words
//
// A lease says "alive until T". Many locks are held under one renewed lease; each bind:ttl lock has an
// unrenewed lease of its own. A lock is a key that is free, or held by a lease under a grant. A grant is
// one successful acquisition: it has a fencing token, and an AttemptID that the asker made before it asked
// the store. A waiter is an asker in a key's FIFO queue, and has the same AttemptID.
//
// A lock has one exclusive holder, or any number of shared ones. A share is the grant of one shared holder,
// with a token, a lease and data of its own. If a limit is given, the key is a semaphore: the shares never
// exceed the limit, and each share has a slot, a number that no other holder has.
//
// A missing lease is dead. Death is final, because ids are never used again. A lease past its expiry is not
// dead yet, because its holder may be renewing it now. To reap a lease is to declare it dead. Only then
// does a lock leave an owner that did not release it. In an engine with the Trait Final, the server reaps a lease
// when it expires.
//
// A lock with a MinHold keeps its key until the hold is over, even if the lock was released or its lease is
// dead. Such a hold is pending: the key counts as held, but no claim on it is right. After the hold, the
// first living waiter gets the key.
//
// # The promises of each store
//
// The numbers are those of docs/guarantees.md, which has all promises of a sidecar. Comments, SQL, docs/proofs.md and test/mutants
// say "promise N". These are the promises for which a store is needed:
//
//   - 1 and 19: At most one unexpired grant of a key exists at any time, by the store's own clock; or only shares,
//     never more than their limit, with different slots. An expired share counts until it is reaped.
//   - 3: The tokens of a key strictly grow in the order of its exclusive and shared grants, through releases,
//     restarts and sweeps.
//   - 4: A grant is reported only after its commit.
//   - 5: A key with living waiters is never free. A release, a cancel or a reap hands the key to the first
//     living waiter (the hand-off). If this waiter is shared, the shared waiters directly behind it get
//     shares too, up to the limit. A shared lock also grants its first waiters as soon as they fit. An
//     earlier living waiter is never overtaken. A skipped waiter leaves the queue. An engine may name the
//     next waiters in a hand-off (the cohort): see Answer.Cohort.
//   - 9: An operation may be repeated, also after an unknown outcome. With the same AttemptID, an Acquire or Enqueue finds the result
//     of the first one. A repeated Release changes nothing. Nothing of an attempt follows its last withdrawal.
//   - 11, 15, 16 and 17: a MinHold keeps its key, a release with Success skips, watchers hear of a key's events, and a stop or break
//     concerns the grant that it names: see the methods.
//
// # Spaces and views
//
// A [Store] is what one instance sees of the data: a view of a [Space]. The views of a space are in one process, and share what costs something for each
// process, as far as the engine can. They share no locks, leases, waits or news, and an engine treats two of them as it treats two processes. A sidecar has a
// space with one view, and costs what its view does.
//
//	engine      shared by the views                                              each view has
//	memory      the data
//	PostgreSQL  the pool, the connection that listens (for each view that needs  its channel
//	            news), the statement that renews leases, the notifier
//	etcd        the connection, the reads of a renewal                           a watch of its mailbox
//	Redis       the connections, the subscription's connection, the request      its channel
//	            that renews leases
//	MySQL       the pool                                                         a connection for renewals, and two while
//	                                                                             it needs letters
//
// Renewals of views that are due at the same time go together: see package store/internal/gather, and the beat of package lease. A renewal that fails, or waits
// for a locked row, is one of its own view. MySQL does not share them, because a statement there waits for a locked row with all others.
//
// # Batches
//
// Every operation takes many items and answers each, in their order. The items of one call name different
// keys. Enqueue, Check, Cancel and Withdraw are the exceptions: several attempts may name the same
// key, and asks are queued in their order. If another transaction keeps an item's row locked for
// long (for instance an operator's open one), the store does nothing for this item and answers RowLocked or
// ClaimRowLocked. The caller then asks again for this item alone.
//
// # Unknown outcomes
//
// An error is of the whole call. If it is [OutcomeUnknown], each item may have been carried out, or may still be. A caller that asked
// for locks repeats the attempts with the same ids, or withdraws them until the answer is final. It repeats other operations: a
// repeated release, renewal or move is safe. After any other error, nothing was done.
//
// # Core and capabilities
//
// Every engine implements [Store]. Some engines also have capabilities, which are interfaces: [Tokens], [Described],
// [Quieter], [Listener], [Joiner] and [Immediate]. [As] finds them. The suite store/storetest tests that each engine keeps the promises of this page;
// store/cas/castest does so for the backends of store/cas.
package store
