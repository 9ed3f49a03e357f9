// Package model searches a small model of the protocol for a way in which it breaks its
// promises: all states that two or three sidecars, one key and a database can come into,
// breadth first, so that what it finds is the shortest way there.
//
// # What is modelled
//
// The lock row, leases, waiters, the first token of the history, and whether the server was promoted;
// each operation of the store as the statements, and the parts of statements between two
// row locks, of which it consists; what each sidecar believes of its lease, its attempt, and
// its lock; and what is on its way. Each step names what stands behind it:
//
//	step                       statement or function
//	atBegin, atTake            acquire_one: its view, and its ON CONFLICT DO UPDATE; acquire_row: its view, and its UPDATE
//	atLook                     read, batch.readHolders
//	atAsk, atAskDo             ask, enqueue, give
//	atFree                     release_one
//	atHand, atGive             pass_on, in hand_off, release and withdraw
//	atCancel, atCheck          cancel_one, check, CancelWaits, CheckWaits
//	atReap, atContended, atDrop  reap.go and its statements
//	atOpen, atRenew, atRenewDo lease_open, lease_renew
//	atHistory                    new_history
//	side.begin … side.hear     lease/internal/attempt, lease/internal/heartbeat
//
// These things can go wrong: an operation is cut off before, in and after each statement,
// and a sent statement is carried out later or never; operations and renewals take too
// long; a sidecar crashes and is started again; a synchronous standby is promoted, with the
// same clock or one that is far ahead; an asynchronous one that is behind.
//
// A tick is the unit of time. Clocks are as far apart as the margin allows. State has what
// is left of each time, and the order of tokens, not their values: so there is a finite
// number of states without a bound on how long it all goes on.
//
// # What is left out
//
//   - bind:ttl locks, and repeats of a request under one attempt id from outside; holds,
//     outcomes, signals, watches, groups, re-entry. Within a attempt the same attempt id is asked
//     for again and again.
//   - A second key, batches, and the order of locks: deadlocks are not looked for.
//   - A second attempt of a sidecar at the same time, and a next one while anything but a
//     release of the one before is under way. Several attempts, and the cohorts that they make, are what Crowd
//     models, with less of the rest: SearchCohorts.
//   - Shared locks and semaphores: SearchShared, with the statements of the store as one step each.
//   - store/key, the key machine of engines in Go: SearchMachine runs the machine itself. SearchKeepers runs it below two sidecars that keep the
//     key between their calls.
//   - News: a check may happen at any time, so a hint makes no difference; and news that says
//     what was granted is a check whose answer comes late.
//   - A lock row that is not there yet, and its sweep; locked rows (55P03).
//   - acquire_one, release_one, cancel_one and reaps keep their row locks for one step.
//   - The middle of a commit. A cut before the commit stands for it.
//   - Leases that nothing is held under are closed at once, when they are due.
//
// # Teeth
//
// A [Rule] is one on which locks rest. Each is turned off by a test, which knows what the
// search then finds. A model that finds nothing is worth what it would have found.
//
// Proves: promise 1, promise 5, promise 19, A2
package model
