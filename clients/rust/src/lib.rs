//! Locks from the [locksidecar](https://github.com/locksidecar/locksidecar) beside the app.
//!
//! ```no_run
//! use locksidecar::{Client, Error, Options};
//!
//! # async fn write(token: i64) -> Result<(), Error> { Ok(()) }
//! # async fn example() -> Result<(), Error> {
//! let client = Client::new(); // one for each process; clones share it
//! client.lock("report:daily", Options::new(), |lock| async move { write(lock.token()).await }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Sessions
//!
//! A [`Client`] has one session, which its first acquire opens. The session owns the client's locks, and lives as long as one connection. So all locks are free
//! when the process ends, for any reason. The sidecar renews them, not the app. If the sidecar restarts, the locks are lost, and the next acquire opens another
//! session. An acquire that waits goes on while it is polled, at the end of the queue, for up to [`Builder::reconnect`] of outage.
//!
//! # Loss
//!
//! A lock can be lost while it is held: the sidecar dies, or hangs until the end of the lease, the store is away for long, somebody breaks the lock. The future in
//! [`Client::lock`] is then dropped, [`Lock::lost`] completes, and [`Lock::loss`] says why. A sidecar that hangs says nothing, so the client asks it three times in
//! each lease, and tells the loss by its own monotonic clock.
//!
//! No client can stop a process that sleeps past its lease and then writes, nor a future between two `await`s. Pass [`Lock::token`] to what the lock protects, and
//! let that refuse a smaller token than it has seen.
//!
//! # Dropped futures and guards
//!
//! Each call may be dropped at any `await`. An acquire that is dropped leaves no lock: a grant under way is withdrawn. A release that is dropped goes on. A
//! [`Guard`] that is dropped releases its lock in the background, and the next acquire of the key by the same client waits for that. When the last clone of the
//! client and its last guard are dropped, or the process ends, its connections close, and the sidecar releases all locks. `std::mem::forget` of a guard keeps the
//! lock until then.
//!
//! # Threads, runtimes and forks
//!
//! The client's connections belong to a thread of its own, which the first call starts. So one client works in several runtimes, outlives each of them, and
//! needs no tokio in the app. A task that blocks its runtime does not delay the news of a loss; it only sees it late. A process that was forked without an exec
//! does not have this thread: there, the parent's client refuses all calls, and the child makes its own. The child also inherits the parent's connections, so
//! the parent's locks would outlive the parent: do not fork so while the parent holds locks.
//!
//! Code under a lock is known by its task, as far as [`Client::lock`] and [`Lock::scope`] run it: an acquire there that would wait for the lock of its own code is
//! refused at once. With [`Options::reentrant`] it enters the lock again. Tasks that it spawns are other code.
//!
//! # Features
//!
//! `tls` is for `https://` addresses, `opentelemetry` for the spans and headers of the app's traces, and `testing` has a real sidecar for the tests of an app.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod client;
mod core;
mod endpoint;
mod error;
mod http;
mod items;
mod latch;
mod lock;
mod options;
mod scope;
mod session;
mod sse;
#[cfg(all(feature = "testing", unix))]
pub mod testing;
mod trace;
mod transport;
mod types;
mod work;

pub use client::{Builder, Client};
pub use error::{Error, Problem, Result};
pub use items::Items;
pub use lock::{Guard, Guards, Lock};
pub use options::{Options, Query, Release};
pub use scope::apart;
pub use types::{Bind, Description, Event, Holder, LockInfo, Mode, Outcome, Released, Scope, SharedHolder, Status, Stopping, Waiter};
pub use work::Semaphore;

/// The guard of a mutex. Nothing panics while it holds one, so it cannot be poisoned.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
