// Package soak lets clients use sidecars for a long time and looks for what grows. It is
// for whoever asks whether a sidecar can run for months.
//
// There are two databases, each with two sidecars and clients who do all that clients can
// do, over and over, on the same few keys. In one of them a transaction with a snapshot
// stays open: PostgreSQL then removes no row version that is younger, whoever made it, so
// every update makes the tables grow, and whoever reads a row walks past its dead versions.
// Its users must end it. But nothing else may grow with it, and the growth must stop when
// the transaction has ended.
//
// Both are databases of one server. In PostgreSQL 15 a transaction with a
// snapshot, in any of them, keeps all from using deleted pages of indexes again: then those
// of waiters_pkey grow in the other one, too, by 16 bytes for each call that waited.
//
// Every 5 seconds the figures are read: of the processes, of the tables,
// and how long a pair of acquire and release takes. A straight line through
// the second half of them must not rise by more than a slack that each figure has; and
// enough must have happened.
package soak
