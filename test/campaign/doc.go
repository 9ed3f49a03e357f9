// Package campaign strikes a running system with faults while clients fight for locks,
// and judges what the clients were told. It shows why locks of this
// sidecar should be trusted.
//
//   - world: PostgreSQL, MariaDB, or servers of etcd or Redis, sidecars built with the race detector, apps: processes.
//   - fault: what is done to them, by a plan that follows from a seed.
//   - load: what the apps do, and what they write down. history: how.
//   - check: the rules that the history is judged by.
//
// Some keys are shared: semaphores, and keys with readers and now and then a writer, who may become a reader. They have
// rules of their own; a campaign in which no semaphore was ever full proves nothing.
//
// Some keys have a home, a sidecar whose clients want them again and again. It may keep them, and clients elsewhere, who wait or only try,
// get them by a recall. Sidecars keep keys for 200 ms, for a second, or not at all (KEEP=200ms,1s,0). Some faults strike a sidecar just when it
// keeps a key that somebody else begins to want, and at the end each is told to stop while it keeps one.
//
// In one second of five all clients want the same key. So many of each sidecar wait for it that sidecars hand it on to
// their own waiters. The judge counts these grants.
//
// A campaign has rounds of 150 seconds, each in a world of its own; in CI it has one, in
// which each kind of fault strikes once. After the last fault is healed, and its traces
// are gone, the clients do nothing but contend, so that what is promised in calm times
// only is judged often, too; then they leave, and nothing of theirs may be left. A round
// fails
//
//   - when a rule is broken;
//   - when a fault was not healed, or did not bite: each counts what it broke;
//   - when a process ended unasked, panicked, or had a data race;
//   - when too little happened: an idle run proves nothing.
//
// It then keeps the history, a page that shows it, the plan and all logs, and says where,
// and how to run the same again:
//
//	make campaign SEED=1 LENGTH=1h FAULTS=cut,disk-full
//
// Beside it stand three that strike nothing: soak, which looks for what grows in a long
// time, overload, where one app wants more than its sidecar gives, and upgrade, where
// sidecars of two releases share a database. They run the sidecar as it is released. And
// failover, which promotes a standby again and again.
//
// A seed determines the plan and what the clients want, not how processes are scheduled:
// the same seed strikes the same at the same time, but may find what it did not before.
//
// Of the database's clock, steps back and steps ahead by less than the margin of 50 ms
// must change nothing, whoever counts. Of larger steps ahead nothing but growing tokens
// is promised; the history says when that was. The boot-time clock of a sidecar jumps
// through a function that the compiler is told to put in the place of the real one
// (world/build.go): the released sources have no hook for it, and a clock of a time
// namespace cannot jump while a process runs.
//
// Proves: promise 1, promise 5, promise 19, A1, A3, A7, A8, A9, trap pooler
package campaign
