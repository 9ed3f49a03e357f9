//! Code under a lock is known by the task that runs it.

use std::future::Future;
use std::sync::Arc;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::options::Options;
use crate::types::Mode;

tokio::task_local! {
    static UNDER: Option<Arc<Under>>;
}

/// The locks around some code, from the innermost one on.
struct Under {
    lock: Lock,
    outer: Option<Arc<Under>>,
}

fn around() -> Option<Arc<Under>> {
    UNDER.try_with(Clone::clone).ok().flatten()
}

fn each(mut under: &Option<Arc<Under>>) -> impl Iterator<Item = &Lock> {
    std::iter::from_fn(move || {
        let here = under.as_ref()?;
        under = &here.outer;
        Some(&here.lock)
    })
}

impl Lock {
    /// Runs a future as code under this lock, as [`crate::Client::lock`] does: an acquire in it that would wait for this lock is refused at once, and with
    /// [`Options::reentrant`] enters it again. It does not end with the lock.
    pub async fn scope<F: Future>(&self, work: F) -> F::Output {
        UNDER.scope(Some(Arc::new(Under { lock: self.clone(), outer: around() })), work).await
    }
}

/// Runs a future as code under locks.
pub(crate) async fn under<F: Future>(locks: Vec<Lock>, work: F) -> F::Output {
    let around = locks.into_iter().fold(around(), |outer, lock| Some(Arc::new(Under { lock, outer })));
    UNDER.scope(around, work).await
}

/// Runs a future that is not under the locks of its task. It is for work that the code under a lock polls and does not wait for: such work may wait for
/// the lock. A task of `tokio::spawn` is apart anyway.
pub async fn apart<F: Future>(work: F) -> F::Output {
    UNDER.scope(None, work).await
}

/// Names the owner of a reentrant call, and refuses a call that would wait for a lock of the code that makes it, which would wait for ever. A call that names its
/// request may get the same grant, and one with [`Options::wait`] ends.
pub(crate) fn place(core: &Core, keys: &[String], o: &mut Options) -> Result<()> {
    let around = around();
    if o.body.reentrant && o.body.owner.is_none() {
        let outer = each(&around).find(|lock| lock.0.reentrant).and_then(|lock| lock.0.owner.clone());
        o.body.owner = Some(outer.unwrap_or_else(|| format!("task-{}", uuid::Uuid::new_v4())));
    }
    if o.wait.is_some() || o.named {
        return Ok(());
    }
    for key in keys {
        let mut shares = 0;
        for lock in each(&around).filter(|lock| lock.key() == key && lock.0.inner.core.transport.at.name == core.transport.at.name && lock.is_held()) {
            let held = lock.sharing();
            let shared = held.mode == Mode::Shared;
            if !shared && o.body.reentrant && lock.0.reentrant && o.body.owner == lock.0.owner {
                break; // it enters
            }
            if !shared || o.body.mode != Some(Mode::Shared) {
                return Err(wrong(
                    key,
                    format!(
                        "the code that makes this call holds the lock (token {}), and would wait for itself for ever: use Options::reentrant in both calls to enter it again, \
                         Options::wait to end the wait, or apart for work that the holder does not wait for",
                        lock.token()
                    ),
                ));
            }
            if o.body.limit.is_some() && held.limit == o.body.limit {
                shares += 1;
            }
        }
        if o.body.limit.is_some_and(|limit| shares >= limit) {
            let detail = format!("the code that makes this call holds all {shares} permits of the semaphore, and would wait for itself for ever: release one, or use Options::wait");
            return Err(wrong(key, detail));
        }
    }
    Ok(())
}

fn wrong(key: &str, detail: String) -> Error {
    crate::error::ours("invalid_request", key, detail).into()
}
