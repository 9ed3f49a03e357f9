// Package failover promotes a standby under load, again and again, and judges what the
// clients were told. It answers the question whether locks survive the loss of the primary.
//
// Two servers, one the standby of the other; sidecars that know both by their URL, in
// either order, and one behind a PgBouncer that is pointed at the new primary. A failover
// is one of three:
//
//   - kill: all processes of the primary end by kill -9; later it is started again, as the
//     primary that it was.
//   - stop: they are stopped by SIGSTOP; later they go on.
//   - behind: the standby is asynchronous and misses what is granted and released last,
//     also of a semaphore; then as kill.
//
// In the first two, another sidecar that knows the old primary only tries to get locks from
// it when it is back: without its standby it can confirm nothing. Then it is ended, and made the
// new primary's standby from a copy, for the next failover. A failover fails
//
//   - when a rule of package check is broken: two holders, a token that does not grow. Of an
//     asynchronous one only the tokens are judged, and for how long two believed to hold.
//     With -quiet nobody may hold what another one believes to hold, either: sidecars grant nothing for
//     a TTL after each failover. A semaphore never has more holders than permits, nor two in a slot; the holder
//     that was forgotten is told that its permit is lost;
//   - when a lock that a session has held since the beginning is lost;
//   - when a sidecar does not grant within 2 seconds of the moment in which the new primary
//     takes writes; behind the PgBouncer a second later, for that waits before it tries
//     again, and where the old primary hangs a timeout of the sidecar later;
//   - when the old primary grants anything, or a sidecar that has seen the new one goes back
//     to it: what is read there is old.
//
// Proves: A2, A3, trap failover
package failover
