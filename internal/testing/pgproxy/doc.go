// Package pgproxy is a proxy between a client and PostgreSQL that causes faults. It understands the
// messages, so it can cut a connection at an exact stage: before a statement reaches the server,
// after the server has it, or between the result and the confirmation of the commit.
//
//	proxy := pgproxy.Start(t, cluster.NewDatabase(t))
//	cut := proxy.Cut(pgproxy.Cut{Statement: "acquire_one", Stage: pgproxy.AfterSend})
//	... // use proxy.URL()
//	if cut.Fired() != 1 { t.Error("the fault did not happen") }
//
// The name of a statement is in the comment at its beginning: "/* locksidecar:acquire_one */ INSERT
// …". This holds also for prepared statements.
//
// OnNotification delays or loses single notifications, of which a client notices nothing.
//
// A fault hits everything that the client sends up to a Sync, because these statements succeed or
// fail together.
package pgproxy
