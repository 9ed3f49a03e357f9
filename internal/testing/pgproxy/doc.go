// Package pgproxy is a proxy between a client and PostgreSQL that makes faults: it
// understands the messages that pass, so it can cut a connection exactly before a
// statement reaches the server, after the server has it, or between its result and
// the confirmation of its commit.
//
//	proxy := pgproxy.Start(t, cluster.NewDatabase(t))
//	cut := proxy.Cut(pgproxy.Cut{Statement: "acquire_one", Stage: pgproxy.AfterSend})
//	... // use proxy.URL()
//	if cut.Fired() != 1 { t.Error("the fault did not happen") }
//
// A statement has the name that stands in the comment at its beginning:
// "/* locksidecar:acquire_one */ INSERT …". A statement that was prepared earlier is
// known by that name too.
//
// The unit of a fault is what the client sends up to and including a Sync: the
// statements in it succeed or fail together.
package pgproxy
