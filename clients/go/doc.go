// Package locksidecar gets locks from the locksidecar beside the app.
//
//	client := locksidecar.New(locksidecar.Config{}) // one for each process
//	defer client.Close()
//
//	err := client.Do(ctx, "report:daily", func(ctx context.Context, lock *locksidecar.Lock) error {
//		return write(ctx, lock.Token())
//	})
//
// # Sessions
//
// A [Client] has one session, which its first acquire opens. The session owns the client's locks, and lives as long as one
// connection. So all locks are free when the process ends, for any reason. The sidecar renews them, not the app. If the sidecar
// restarts, the locks are lost, and the next acquire opens another session. An acquire that waits goes on, at the end of the queue,
// for up to [Config.Reconnect] of outage.
//
// # Loss
//
// A lock can be lost while it is held: the sidecar dies, or hangs until the end of the lease, the store is away for long, somebody
// breaks the lock. The context that [Client.Do] passes, and [Lock.Context], then end with the loss as their cause. A sidecar that
// hangs says nothing, so the client asks it three times in each lease, and tells the loss by its own monotonic clock.
//
// No client can stop a process that sleeps past its lease and then writes. Pass [Lock.Token] to what the lock protects, and let
// that refuse a smaller token than it has seen.
//
// # Contexts
//
// The context of an acquire limits only the acquire. When it ends, a grant that is under way is withdrawn. A release has no
// context, because it must get through; it takes at most [Config.Timeout], and goes on in the background if the sidecar does not answer.
//
// Code under a lock is known by its context, because goroutines have no identity. An acquire that would wait for the lock
// of its own context, such as a Do inside of a Do for the same key, is refused at once. With [Reentrant] it enters the lock again.
//
// # Errors
//
// Each error of the sidecar or of the client is an [*Error] with a stable code. Use errors.Is with [ErrLockHeld] and the other
// variables, and errors.As for the holder and more.
package locksidecar
