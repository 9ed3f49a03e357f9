//! Work under locks.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::Serialize;

use crate::client::Client;
use crate::error::{closed, invalid, Error, Result};
use crate::lock::{Guard, Guards, Lock};
use crate::options::{Options, Release};
use crate::scope::under;
use crate::types::{Outcome, Stopping};

/// The pause between two campaigns in an outage, if the sidecar does not name one.
const CAMPAIGN_PAUSE: Duration = Duration::from_secs(1);

/// How work under locks has ended.
enum End<T> {
    Done(T),
    Lost(Error),
}

/// Runs a future under locks, and drops it when one of them is lost.
async fn run<T>(guards: &Guards, work: impl Future<Output = T>) -> End<T> {
    let locks = guards.iter().map(|guard| guard.handle()).collect();
    let (work, lost) = (pin!(under(locks, work)), pin!(guards.lost()));
    tokio::select! {
        biased;
        lost = lost => End::Lost(lost),
        done = work => End::Done(done),
    }
}

/// Runs a future under locks, and releases them.
async fn hold<T, E: From<Error>>(guards: Guards, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    // A drop of this future drops the work before the guards, so nothing of it runs after the release.
    match run(&guards, work).await {
        End::Lost(lost) => Err(lost.into()),
        End::Done(done) => {
            let released = guards.release().await;
            let value = done?;
            if let Some(lost) = guards.loss() {
                return Err(lost.into());
            }
            released?;
            Ok(value)
        }
    }
}

impl Client {
    /// Runs a future under a lock, and releases it. If the lock is lost, the future is dropped at its next `await`, and the error is [`Error::LockLost`]. If
    /// the future fails, its error is returned. If this future is dropped, first the work is, then the lock is released.
    ///
    /// ```no_run
    /// # use locksidecar::{Client, Error, Options};
    /// # async fn write(token: i64) -> Result<(), Error> { Ok(()) }
    /// # async fn example() -> locksidecar::Result<()> {
    /// let client = Client::new();
    /// client.lock("report:daily", Options::new(), |lock| async move { write(lock.token()).await }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock<T, E, F, R>(&self, key: &str, options: Options, work: F) -> Result<T, E>
    where
        F: FnOnce(Lock) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let guards = Guards::new(vec![Box::pin(self.acquire(key, options)).await?]);
        let lock = guards[0].handle();
        hold(guards, async { work(lock).await }).await
    }

    /// [`Client::lock`] with several locks, all or none.
    pub async fn lock_many<T, E, F, R, I>(&self, keys: I, options: Options, work: F) -> Result<T, E>
    where
        I: IntoIterator,
        I::Item: Into<String>,
        F: FnOnce(Vec<Lock>) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let guards = Box::pin(self.acquire_many(keys, options)).await?;
        let locks = guards.iter().map(|guard| guard.handle()).collect();
        hold(guards, async { work(locks).await }).await
    }

    /// Does work once: of all concurrent callers for a key, one runs the function, and the others wait for its result, which all get as JSON makes it, in at
    /// most 4 KiB. If the function fails, its caller gets the error, and the next one runs its own. A later call runs again.
    ///
    /// ```no_run
    /// # use locksidecar::{Client, Error, Options};
    /// # async fn example(client: Client) -> locksidecar::Result<()> {
    /// let rows = client.once("report", Options::new(), |_| async { Ok::<u64, Error>(42) }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn once<T, E, F, R>(&self, key: &str, options: Options, work: F) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce(Lock) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let read = |value| serde_json::from_value(value).map_err(|e| E::from(invalid(format!("the result of the holder is none of this call's: {e}"))));
        let guard = match Box::pin(self.acquire(key, options.skip_if_done())).await {
            Ok(guard) => guard,
            Err(Error::Skipped(p)) => return read(p.result),
            Err(e) => return Err(e.into()),
        };
        let lock = guard.handle();
        let guards = Guards::new(vec![guard]);
        let done = match run(&guards, async { work(lock).await }).await {
            End::Lost(lost) => return Err(lost.into()),
            End::Done(done) => done,
        };
        let released = match done.and_then(|value| Ok(serde_json::to_value(value).map_err(|e| invalid(format!("the result cannot be made into JSON: {e}")))?)) {
            Ok(value) => guards.release_with(&Release::new().result(&value)).await.map(|()| value).map_err(E::from),
            Err(e) => Err(e),
        };
        match released {
            Ok(value) => read(value),
            Err(e) => {
                // Also if the result was too large, for example: the next caller runs its own.
                let _ = guards.release_with(&Release::new().outcome(Outcome::Failure)).await;
                Err(e)
            }
        }
    }

    /// Waits until it is the leader, and runs a function for the term. The function's future is dropped when the lock is lost, or somebody asks to stop; then
    /// it campaigns again. If the function returns while its term lasts, this gives up the leadership and returns its result. A campaign goes on through an
    /// outage of the sidecar or its store, if the client has reached them before. A drop of this future ends the work, then the leadership.
    ///
    /// The client hears of a loss, and of a request to stop, at once while the sidecar answers. If the sidecar hangs, the lock is lost when its lease ends by this
    /// process's clock.
    ///
    /// The errors are those of the function, and those of [`Client::acquire`] that will not pass, such as [`Error::InvalidRequest`] and [`Error::Forbidden`]. Until the client has
    /// reached a sidecar, also [`Error::Unavailable`], [`Error::LimitReached`] and [`Error::SessionEnded`], which a closed client returns, too.
    ///
    /// Use options such as [`Options::data`], which [`Client::leader`] returns to others.
    pub async fn lead<T, E, F, R>(&self, key: &str, options: Options, mut work: F) -> Result<T, E>
    where
        F: FnMut(Lock) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        loop {
            let guard = match Box::pin(self.acquire(key, options.clone())).await {
                Ok(guard) => guard,
                Err(e) => {
                    if !self.may_return(&e) {
                        return Err(e.into());
                    }
                    self.rest(&e).await?;
                    continue;
                }
            };
            let lock = guard.handle();
            let guards = Guards::new(vec![guard]);
            match term(&guards, lock.stopping(), async { work(lock.clone()).await }).await {
                Some(done) if guards.loss().is_none() => {
                    let released = guards.release().await;
                    let value = done?;
                    match released {
                        Ok(()) | Err(Error::LockLost(_)) => return Ok(value),
                        Err(e) => return Err(e.into()),
                    }
                }
                _ => {
                    // The term has ended before the function, or by the release.
                    let _ = guards.release().await;
                }
            }
        }
    }

    /// Whether a sidecar that was there before may grant the lock later.
    fn may_return(&self, e: &Error) -> bool {
        self.inner.core.was_connected() && matches!(e, Error::Unavailable(_) | Error::LimitReached(_) | Error::SessionEnded(_) | Error::LockLost(_))
    }

    /// Waits before the next campaign.
    async fn rest(&self, after: &Error) -> Result<()> {
        let wait = after.problem().retry_after.unwrap_or(CAMPAIGN_PAUSE);
        // In the client's thread, which has a clock.
        self.inner
            .run(async move {
                tokio::time::sleep(wait).await;
                Ok(())
            })
            .await?;
        if self.inner.core.is_closed() {
            return Err(closed());
        }
        Ok(())
    }

    /// A key with at most so many holders in all pods. It makes no call. All that use the key name the same limit, 1 to 1000, or get
    /// [`Error::LimitMismatch`].
    pub fn semaphore(&self, key: &str, most: u32) -> Semaphore {
        Semaphore { client: self.clone(), key: key.to_owned(), most }
    }
}

/// Runs the function for one term: `None` if the term has ended before it.
async fn term<T>(guards: &Guards, stopping: impl Future<Output = Stopping>, work: impl Future<Output = T>) -> Option<T> {
    let (stopping, work) = (pin!(stopping), pin!(run(guards, work)));
    tokio::select! {
        biased;
        _ = stopping => None,
        end = work => match end {
            End::Done(done) => Some(done),
            End::Lost(_) => None,
        },
    }
}

/// A key with at most so many holders in all pods. A permit is a lock with a slot.
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    key: String,
    most: u32,
}

impl Semaphore {
    /// Waits for a permit, as [`Client::acquire`].
    pub async fn acquire(&self, options: Options) -> Result<Guard> {
        self.client.acquire(&self.key, self.with(options)).await
    }

    /// Gets a permit without a wait, as [`Client::try_acquire`].
    pub async fn try_acquire(&self, options: Options) -> Result<Option<Guard>> {
        self.client.try_acquire(&self.key, self.with(options)).await
    }

    /// Runs a future with a permit, as [`Client::lock`].
    pub async fn lock<T, E, F, R>(&self, options: Options, work: F) -> Result<T, E>
    where
        F: FnOnce(Lock) -> R,
        R: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.client.lock(&self.key, self.with(options), work).await
    }

    fn with(&self, options: Options) -> Options {
        options.shared().limit(self.most)
    }
}
