use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::sync::Mutex as Turn;

use crate::core::Inner;
use crate::error::{invalid, ours, Error, Problem, Result};
use crate::options::{Options, Release};
use crate::session::{Amend, Claim, Entry, Grant, Session};
use crate::trace::{self, Parent};
use crate::transport::Headers;
use crate::types::{ms, to_ms, Bind, Mode, Released, Status, Stopping, WireGrant};

/// A held lock, until its release or loss. Clones are of the same lock; only a [`Guard`] releases it when it is dropped.
#[derive(Clone)]
pub struct Lock(pub(crate) Arc<Held>);

pub(crate) struct Held {
    pub inner: Arc<Inner>,
    session: Arc<Session>,
    grant: Arc<Grant>,
    entry: Arc<Entry>,
    wire: WireGrant,
    /// The request of this entry of a reentrant lock.
    request: Option<String>,
    pub owner: Option<String>,
    pub reentrant: bool,
    traceparent: Option<(String, String)>,
    parent: Parent,
    /// Held during a release. A release that had no answer is repeated in the background, and by another release.
    owed: Turn<Option<Claim>>,
    released: Mutex<Option<Released>>,
    sharing: Mutex<Sharing>,
}

/// How the lock is held, which a downgrade changes.
#[derive(Clone, Copy)]
pub(crate) struct Sharing {
    pub mode: Mode,
    pub limit: Option<u32>,
    slot: Option<u32>,
}

impl Lock {
    pub(crate) fn new(inner: &Arc<Inner>, session: &Arc<Session>, wire: WireGrant, grant: Arc<Grant>, o: &Options, parent: &Parent) -> Lock {
        // A lock of bind_to_ttl outlives the session.
        let session = if wire.bind == Some(Bind::Ttl) { Session::none(&inner.core, session.about.clone()) } else { session.clone() };
        let entry = Arc::new(Entry { lost: crate::latch::Latch::new(), on_stop: o.on_stop.clone() });
        let held = Held {
            inner: inner.clone(),
            session,
            entry: entry.clone(),
            request: o.body.reentrant.then(|| o.body.request_id.clone()),
            owner: o.body.owner.clone(),
            reentrant: o.body.reentrant,
            traceparent: o.traceparent.clone(),
            parent: parent.clone(),
            owed: Turn::new(None),
            released: Mutex::new(None),
            sharing: Mutex::new(Sharing { mode: wire.mode.unwrap_or(Mode::Exclusive), limit: wire.limit, slot: wire.slot }),
            grant: grant.clone(),
            wire,
        };
        grant.note(held.wire.stopping.clone());
        grant.enter(&entry);
        Lock(Arc::new(held))
    }

    /// The lock's key.
    pub fn key(&self) -> &str {
        &self.0.wire.key
    }

    /// The fencing token. The tokens of a key strictly grow. Pass it to what the lock protects, which should refuse a smaller one than it has seen.
    pub fn token(&self) -> i64 {
        self.0.wire.token
    }

    /// Completes with [`Error::LockLost`] when the lock is lost. A release is no loss: then it never completes.
    pub fn lost(&self) -> impl Future<Output = Error> + Send + Sync + 'static {
        self.0.entry.lost.wait()
    }

    /// The loss, if the lock is lost.
    pub fn loss(&self) -> Option<Error> {
        self.0.entry.lost.get()
    }

    /// Whether the lock is held, as far as is known here. [`Lock::check`] asks the sidecar.
    pub fn is_held(&self) -> bool {
        self.released().is_none() && self.loss().is_none()
    }

    /// Completes when somebody asks the holder to finish and to release the lock. A lock of [`Options::bind_to_ttl`] learns it by [`Lock::check`].
    pub fn stopping(&self) -> impl Future<Output = Stopping> + Send + Sync + 'static {
        let grant = self.0.grant.clone();
        async move {
            grant.stopped.wait().await;
            grant.stopping().unwrap_or_default()
        }
    }

    /// The last request to stop.
    pub fn stop_request(&self) -> Option<Stopping> {
        self.0.grant.stopping()
    }

    /// How the lock is held.
    pub fn mode(&self) -> Mode {
        self.sharing().mode
    }

    /// The most shared holders at a time.
    pub fn limit(&self) -> Option<u32> {
        self.sharing().limit
    }

    /// A number from 0 to the limit - 1 that no other holder has; `None` without a limit.
    pub fn slot(&self) -> Option<u32> {
        self.sharing().slot
    }

    pub(crate) fn sharing(&self) -> Sharing {
        *crate::lock(&self.0.sharing)
    }

    /// The public name of the session; `None` for a lock of [`Options::bind_to_ttl`].
    pub fn session(&self) -> Option<&str> {
        self.0.wire.session.as_deref()
    }

    /// What ends the lock without a release.
    pub fn bind(&self) -> Bind {
        self.0.wire.bind.unwrap_or(Bind::Session)
    }

    /// The number of this entry of its owner.
    pub fn reentry(&self) -> u32 {
        self.0.wire.reentry
    }

    /// How long the acquire waited in the queue.
    pub fn waited(&self) -> Duration {
        ms(self.0.wire.waited_ms)
    }

    /// For how long an app could rely on the grant without news from the sidecar. [`Lock::check`] has the present value.
    pub fn expires_in(&self) -> Duration {
        ms(self.0.wire.expires_in_ms)
    }

    /// By the clock of the store, and informative.
    pub fn acquired_at(&self) -> Option<SystemTime> {
        self.0.wire.acquired_at
    }

    /// Asks whether the lock is held. The error is [`Error::LockLost`], or after a release [`Error::NotHolder`].
    pub async fn check(&self) -> Result<Status> {
        self.amend(Amend::default()).await
    }

    /// Replaces the lock's data, which others see. It is as [`Lock::check`] in all else.
    pub async fn update(&self, data: impl Serialize) -> Result<Status> {
        let data = serde_json::to_value(data).map_err(|e| invalid(format!("data: it cannot be made into JSON: {e}")))?;
        self.amend(Amend { data: Some(data), ..Amend::default() }).await
    }

    /// Sets the remaining time of a lock of [`Options::bind_to_ttl`], from now. It is refused for the lock of a session, which the sidecar renews.
    pub async fn extend(&self, ttl: Duration) -> Result<Status> {
        self.amend(Amend { ttl_ms: Some(to_ms(ttl)), ..Amend::default() }).await
    }

    /// Makes an exclusive lock shared, under the same token. Shared calls that wait are let in. There is no way back, because two holders would wait for
    /// each other.
    pub async fn downgrade(&self) -> Result<Status> {
        self.amend(Amend { mode: Some(Mode::Shared), ..Amend::default() }).await
    }

    async fn amend(&self, body: Amend) -> Result<Status> {
        let held = self.0.clone();
        self.0.inner.run(async move { held.amend(Amend { token: held.wire.token, ..body }).await }).await
    }

    /// Releases this entry of the lock; the last entry frees it. If the sidecar does not answer, it returns the error and goes on in the background until
    /// there is an answer or the session is over. A second call returns what became of it. If the lock was lost, the error is [`Error::LockLost`].
    ///
    /// If this future is dropped, the release goes on.
    pub async fn release(&self) -> Result<Released> {
        self.release_with(Release::new()).await
    }

    /// [`Lock::release`] with options.
    pub async fn release_with(&self, options: Release) -> Result<Released> {
        let held = self.0.clone();
        let claim = Claim::new(held.wire.token, held.request.clone(), options)?;
        let (span, headers) = trace::release(held.key(), held.wire.token, &held.parent, held.traceparent.as_ref());
        let done = self.0.inner.run_through(async move { held.release(claim, headers).await }).await;
        span.end(done.as_ref().map(|_| ("released", Some(self.token()))));
        done
    }

    /// The answer to the release, if there was one.
    pub fn released(&self) -> Option<Released> {
        *crate::lock(&self.0.released)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock").field("key", &self.key()).field("token", &self.token()).field("held", &self.is_held()).finish_non_exhaustive()
    }
}

impl Held {
    fn key(&self) -> &str {
        &self.wire.key
    }

    /// The loss that ends a lock of the session. For a lock without a session the store decides, not the clock here.
    fn session_loss(&self) -> Option<Error> {
        self.entry.lost.get().filter(|_| self.wire.bind != Some(Bind::Ttl))
    }

    async fn amend(&self, body: Amend) -> Result<Status> {
        if let Some(lost) = self.session_loss() {
            return Err(lost);
        }
        let sent = Instant::now();
        let status: Status = self.session.amend(self.key(), &body, None).await.map_err(|e| self.session.note(&self.grant, e))?.into();
        if self.wire.bind == Some(Bind::Ttl) {
            self.grant.expire(&self.inner.core, sent, sent + status.expires_in);
        }
        if body.mode.is_some() {
            *crate::lock(&self.sharing) = Sharing { mode: status.mode, limit: status.limit, slot: status.slot };
        }
        self.grant.note(status.stopping.clone());
        Ok(status)
    }

    async fn release(self: Arc<Self>, claim: Claim, headers: Headers) -> Result<Released> {
        // An app may have left another release without polling it. Its drop lets it go on.
        let Ok(mut owed) = tokio::time::timeout(self.inner.core.timeout, self.owed.lock()).await else {
            return Err(ours("timeout", self.key(), "another release of this lock is under way, and nothing awaits it").into());
        };
        if let Some(done) = *crate::lock(&self.released) {
            return Ok(done);
        }
        if let Some(lost) = self.session_loss() {
            return Err(lost);
        }
        let claim = owed.clone().unwrap_or(claim);
        match self.session.release(self.key(), &claim, headers.clone()).await {
            Ok(answer) => Ok(self.over(answer)),
            Err(Error::NotHolder(p)) if owed.is_some() && self.is_done(&p) => Ok(self.over(already(&p))),
            Err(e) => {
                if e.may_be_done() && owed.is_none() {
                    *owed = Some(claim.clone());
                    let (held, session) = (self.clone(), self.session.clone());
                    self.inner.core.spawn(async move { session.owe(move || held.clone().repeat(claim.clone(), headers.clone())).await });
                }
                Err(self.session.note(&self.grant, e))
            }
        }
    }

    /// Repeats a release that had no answer.
    async fn repeat(self: Arc<Self>, claim: Claim, headers: Headers) -> Result<()> {
        match self.session.release(self.key(), &claim, headers).await {
            Ok(answer) => drop(self.over(answer)),
            Err(e) if e.may_be_done() => return Err(e),
            Err(Error::NotHolder(p)) if self.is_done(&p) => drop(self.over(already(&p))),
            Err(e) => drop(self.session.note(&self.grant, e)),
        }
        Ok(())
    }

    /// Whether the refusal of a repeated release means that an earlier one was carried out.
    fn is_done(&self, refusal: &Problem) -> bool {
        // The store may have forgotten the end of a lock without a session. Nobody else ends it before its time.
        refusal.reason == "released" || self.wire.bind == Some(Bind::Ttl) && refusal.reason == "unknown_token" && !self.entry.lost.is_set()
    }

    /// Notes that this entry was released.
    fn over(&self, answer: Released) -> Released {
        let done = *crate::lock(&self.released).get_or_insert(answer);
        self.grant.leave(&self.entry);
        if answer.free {
            self.session.released(&self.grant);
        }
        done
    }

    /// Releases the lock of a guard that is dropped. The next acquire of this client waits for it for a moment.
    fn leave(self: Arc<Self>) {
        let over = crate::lock(&self.released).is_some() || self.entry.lost.is_set() || self.inner.core.is_closed();
        if over || self.wire.bind == Some(Bind::Ttl) {
            return;
        }
        let Ok(claim) = Claim::new(self.wire.token, self.request.clone(), Release::new()) else { return };
        let (span, headers) = trace::release(self.key(), self.wire.token, &self.parent, self.traceparent.as_ref());
        let departure = self.inner.core.departures.begin(self.key());
        let (core, token) = (self.inner.core.clone(), self.wire.token);
        core.spawn(async move {
            let done = self.clone().release(claim.clone(), headers.clone()).await;
            drop(departure);
            if done.is_err() && self.owed.try_lock().is_err() {
                // Another release has the turn, and nothing awaits it.
                let (held, session) = (self.clone(), self.session.clone());
                session.owe(move || held.clone().repeat(claim.clone(), headers.clone())).await;
            }
            span.end(done.as_ref().map(|_| ("released", Some(token))));
        });
    }
}

fn already(refusal: &Problem) -> Released {
    Released { free: refusal.reentry == 0, reentry: refusal.reentry, held: Duration::ZERO }
}

/// A held [`Lock`] that is released when it is dropped.
///
/// A drop cannot wait, so the release runs in the background, and its error is not seen: call [`Lock::release`] to learn it. A lock of
/// [`Options::bind_to_ttl`] is not released by a drop, because it is to outlive it.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard(Lock);

impl Guard {
    pub(crate) fn new(lock: Lock) -> Guard {
        Guard(lock)
    }

    /// A handle of the lock for other tasks. It does not keep the lock.
    pub fn handle(&self) -> Lock {
        self.0.clone()
    }
}

impl Deref for Guard {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        &self.0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0 .0.clone().leave();
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Several locks, in the order in which their keys were named. They are released when it is dropped.
#[derive(Debug)]
#[must_use = "the locks are released when the guards are dropped"]
pub struct Guards(Vec<Guard>);

impl Guards {
    pub(crate) fn new(guards: Vec<Guard>) -> Guards {
        Guards(guards)
    }

    pub(crate) fn only(self) -> Option<Guard> {
        self.0.into_iter().next()
    }

    /// The guards, each on its own.
    pub fn into_guards(self) -> Vec<Guard> {
        self.0
    }

    /// The lock of a key.
    pub fn of(&self, key: &str) -> Option<&Guard> {
        self.0.iter().find(|guard| guard.key() == key)
    }

    /// Releases all of them, and returns the first error.
    pub async fn release(&self) -> Result<()> {
        self.release_with(&Release::new()).await
    }

    pub(crate) async fn release_with(&self, options: &Release) -> Result<()> {
        // They run at the same time.
        let mut releases: Vec<_> = self.0.iter().map(|guard| Box::pin(guard.release_with(options.clone()))).collect();
        let mut done = Ok(());
        let mut results: Vec<Option<Result<Released>>> = self.0.iter().map(|_| None).collect();
        std::future::poll_fn(|cx| {
            let mut pending = false;
            for (release, result) in releases.iter_mut().zip(&mut results) {
                if result.is_none() {
                    match release.as_mut().poll(cx) {
                        std::task::Poll::Ready(released) => *result = Some(released),
                        std::task::Poll::Pending => pending = true,
                    }
                }
            }
            if pending {
                std::task::Poll::Pending
            } else {
                std::task::Poll::Ready(())
            }
        })
        .await;
        for result in results.into_iter().flatten() {
            done = done.and(result.map(drop));
        }
        done
    }

    /// Completes when one of them is lost.
    pub async fn lost(&self) -> Error {
        let mut losses: Vec<_> = self.0.iter().map(|guard| Box::pin(guard.lost())).collect();
        std::future::poll_fn(|cx| losses.iter_mut().map(|lost| lost.as_mut().poll(cx)).find(std::task::Poll::is_ready).unwrap_or(std::task::Poll::Pending))
            .await
    }

    /// The first loss.
    pub fn loss(&self) -> Option<Error> {
        self.0.iter().find_map(|guard| guard.loss())
    }
}

impl Deref for Guards {
    type Target = [Guard];

    fn deref(&self) -> &[Guard] {
        &self.0
    }
}
