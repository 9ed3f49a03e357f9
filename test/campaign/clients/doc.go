// Package clients lets programs on the clients for Python, Node, Go, Ruby, PHP, the JVM and Rust run, while they are interrupted, cancelled, forked
// and frozen, and while their sidecars and the store fail and hang. It is for whoever asks whether an app can rely on a client.
//
// A program is an app with one client and some threads, tasks, greenlets or children. They want the same few keys in all ways that
// the client has, and write each call down when it begins and when it ends. A seed says what they do, and which faults strike.
//
// A run has rounds. Each begins with a freeze of all sidecars for longer than a lease, while each program holds a lock that it releases only when it is
// told of the loss. Then faults strike for a while. Then all is healed, and the programs get calm: each call ends, and the
// program says what it holds. The sidecars say what is held. Then each program uses each of its objects again.
//
// The history is judged by these rules:
//
//   - exclusion: while a program holds a key, up to a release that was confirmed, nobody else is granted it, whatever fails;
//   - told: who loses a key is told before another is granted it, unless the program is frozen;
//   - clock: whose sidecar is frozen is told of the loss when the lease of the last answer is over;
//   - tokens: a later grant has a larger token;
//   - permits: a semaphore never has more holders than its limit;
//   - time: each call ends in its time, and soon after it was cancelled;
//   - error: each error is one that the client documents, and something has failed that explains it;
//   - known: when all is quiet, exactly those keys are held that a program says it holds;
//   - again: each object works again;
//   - traffic: enough has happened that the rest says something: each program held a lock in a freeze.
//
// Each second start of the program for Go calls its sidecar through a relay that holds answers back. So a client that leaves such a call has to withdraw it.
//
// The rules read nothing but the history, so one that was kept can be judged again: go test ./clients -judge FOLDER.
//
// A program has little memory, so that one that grows ends. No allocation is made to fail: a runtime that is out of memory
// promises nothing.
package clients
