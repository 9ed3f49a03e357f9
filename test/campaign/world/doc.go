// Package world is what a campaign strikes: a store, sidecars that run the
// built binary, apps in processes of their own, and between each sidecar and the
// store a network that can be spoilt. All of it are real processes on this machine.
//
//	sidecar ── pgproxy ── toxiproxy ── PostgreSQL
//	sidecar ── 3 links ── 3 toxiproxies ── 3 servers of etcd
//	sidecar ── 6 links ── 6 toxiproxies ── 6 renamers ── 6 servers of a Redis cluster
//
// pgproxy knows statements, so it cuts exactly before, in and after one; toxiproxy
// knows bytes, so it delays and swallows them. Each sidecar has its own of both. Where the
// world is pooled, PgBouncer stands before the database, for all of them.
//
// The servers of etcd and of a Redis cluster talk to each other through proxies of their own, so one can be cut off from the others
// while sidecars still reach it. Servers of Redis tell clients the addresses of other servers. The renamers replace these by those of
// the sidecar's own proxies.
//
// The database's folder is a file system of its own, a tmpfs, so that it can be full;
// mounting it takes root. Sidecars connect as a role without any privileges, and the
// world as a superuser: connections that are kept free for superusers show the world
// what happens when nobody else gets one.
//
// Methods may be called from several goroutines, but those that start and end one
// process only from one at a time: the schedule sees to it.
package world
