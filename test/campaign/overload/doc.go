// Package overload is an app that wants more than its sidecar gives: ten thousand
// connections, fifty thousand calls that wait, sessions opened and dropped without a
// pause. It shows what becomes of the others then.
//
// These rules must hold:
//
//   - every answer is honest: granted, or 429 or 503 with a code and Retry-After. A
//     connection that is closed without an answer is one that the sidecar would not keep;
//   - the limits are kept, exactly where the sidecar counts: sessions, waiting calls;
//   - memory is bounded: with the manifests' settings below the manifests' limit;
//   - when the app has gone, nothing of it is left: descriptors, goroutines, rows;
//   - apps behind another sidecar, which share the database with it, wait at most twice
//     as long as they did just before.
//
// The last is only judged where the app's calls are paced. All runs on one machine: an app
// without a pace takes processor time from the database and from those that are measured,
// which in a cluster it could not. The figures of that time are printed.
package overload
