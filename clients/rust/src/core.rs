//! What the client's thread and its callers share.
//!
//! A client has one thread of its own, with a tokio runtime for its connections. So it works with each runtime of the app, and outlives it; a task of the
//! app that blocks its thread does not delay the news of a loss; and a guard can be dropped anywhere. A call is polled by its caller, with this runtime as its
//! context: on a connection that is kept it needs the thread only to hear that the answer has come. [`Transport`] says what the thread does instead. Each value on
//! the way to the caller gives the lock back when it is dropped: first [`Asked`], which withdraws a call without an answer, then the guard itself.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{oneshot, Notify};
use tokio::task::{AbortHandle, JoinHandle};

use crate::error::{closed, ours, Error, Result};
use crate::latch::Latch;
use crate::session::Session;
use crate::transport::{Call, Transport};
use crate::types::Description;

/// What is called when a wait or a stream goes on in an outage.
pub(crate) type OnOutage = Arc<dyn Fn(&Error) + Send + Sync>;

/// How long an acquire waits for the withdrawals and releases of its keys that this client has under way.
const DEPARTURE_PATIENCE: Duration = Duration::from_millis(250);

pub(crate) struct Core {
    pub transport: Arc<Transport>,
    pub name: Option<String>,
    pub ttl: Option<Duration>,
    pub timeout: Duration,
    pub reconnect: Duration,
    pub on_outage: Option<OnOutage>,
    pub departures: Departures,
    handle: OnceLock<Handle>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    /// The session that is being opened, for all calls that wait for it.
    opening: Option<Arc<Latch<Result<Arc<Session>>>>>,
    /// There was a session.
    connected: bool,
    closed: bool,
}

impl Core {
    pub fn new(
        transport: Arc<Transport>,
        name: Option<String>,
        ttl: Option<Duration>,
        timeout: Duration,
        reconnect: Duration,
        on_outage: Option<OnOutage>,
    ) -> Core {
        Core { transport, name, ttl, timeout, reconnect, on_outage, departures: Departures::default(), handle: OnceLock::new(), state: Mutex::default() }
    }

    /// Runs something in the client's thread. It is dropped if the client has ended.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(handle) = self.handle.get() {
            drop(handle.spawn(work));
        }
    }

    pub fn spawn_abortable(&self, work: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        Some(self.handle.get()?.spawn(work).abort_handle())
    }

    pub fn is_closed(&self) -> bool {
        crate::lock(&self.state).closed
    }

    /// Whether a sidecar has answered before, and the client is not closed.
    pub fn was_connected(&self) -> bool {
        let state = crate::lock(&self.state);
        state.connected && !state.closed
    }

    /// The session, if there is one.
    pub fn session(&self) -> Option<Arc<Session>> {
        crate::lock(&self.state).session.clone()
    }

    /// The session; it opens one if there is none.
    pub async fn open(self: &Arc<Self>) -> Result<Arc<Session>> {
        let opening = {
            let mut state = crate::lock(&self.state);
            if state.closed {
                return Err(closed());
            }
            if let Some(session) = &state.session {
                return Ok(session.clone());
            }
            match &state.opening {
                Some(opening) => opening.clone(),
                None => {
                    let opening = Arc::new(Latch::new());
                    state.opening = Some(opening.clone());
                    // A task of its own, because the calls that wait for it may leave meanwhile.
                    self.spawn(self.clone().opens(opening.clone()));
                    opening
                }
            }
        };
        tokio::select! {
            biased;
            opened = opening.wait() => opened,
            why = self.transport.life.wait() => Err(why),
        }
    }

    async fn opens(self: Arc<Self>, opening: Arc<Latch<Result<Arc<Session>>>>) {
        let opened = Session::open(&self).await;
        let mut state = crate::lock(&self.state);
        state.opening = None;
        let closed = state.closed;
        if let Ok(session) = &opened {
            state.connected = true;
            if !closed && !session.is_over() {
                state.session = Some(session.clone());
            }
        }
        drop(state);
        if let (Ok(session), true) = (&opened, closed) {
            session.end();
        }
        opening.set(opened);
    }

    /// Forgets a session that has ended.
    pub fn forget(&self, ended: &Session) {
        let mut state = crate::lock(&self.state);
        if state.session.as_ref().is_some_and(|session| std::ptr::eq(&**session, ended)) {
            state.session = None;
        }
    }

    /// The session if there is one, else one for calls without a session.
    pub async fn caller(self: &Arc<Self>) -> Result<Arc<Session>> {
        {
            let state = crate::lock(&self.state);
            if state.closed {
                return Err(closed());
            }
            if let Some(session) = &state.session {
                return Ok(session.clone());
            }
        }
        let about = self.describe().await?;
        Ok(Session::none(self, about))
    }

    /// Asks over the connection in reserve, so that it is open before any call waits.
    pub async fn describe(&self) -> Result<Description> {
        self.transport
            .answer(&Call { method: "GET", path: "/v1".to_owned(), timeout: Some(self.timeout), reserved: true, repeatable: true, ..Call::default() })
            .await
    }

    /// Ends all calls, and returns the session.
    fn shut(&self) -> Option<Arc<Session>> {
        let mut state = crate::lock(&self.state);
        state.closed = true;
        state.opening = None;
        state.session.take()
    }

    /// Ends the session at the sidecar, which releases all locks.
    pub async fn close(&self) {
        let session = self.shut();
        if let Some(session) = session {
            session.close().await;
        }
        self.transport.close(closed());
    }
}

/// The client's thread. It ends when the last handle of the client is dropped: then its connections close, so the sidecar releases all locks.
pub(crate) struct Inner {
    pub core: Arc<Core>,
    /// Dropped with the client, which ends the thread.
    stop: Mutex<Option<oneshot::Sender<()>>>,
    process: u32,
}

impl Inner {
    pub fn new(core: Core) -> Inner {
        Inner { core: Arc::new(core), stop: Mutex::new(None), process: std::process::id() }
    }

    fn handle(&self) -> Result<&Handle> {
        if self.process != std::process::id() {
            let detail = "this process was forked from the one that made this client, whose thread it does not have; make a client after the fork";
            return Err(ours("invalid_request", "", detail).into());
        }
        if let Some(handle) = self.core.handle.get() {
            return Ok(handle);
        }
        let mut stop = crate::lock(&self.stop);
        if let Some(handle) = self.core.handle.get() {
            return Ok(handle);
        }
        let failed = |e: std::io::Error| ours("unreachable", "", format!("the client's thread cannot be started: {e}")).because(e);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (sender, stopped) = oneshot::channel();
        let core = self.core.clone();
        // Given to the thread when that is there. Else it would be dropped here, which panics in a task of the app.
        let (give, take) = std::sync::mpsc::sync_channel::<Runtime>(1);
        let started = std::thread::Builder::new().name("locksidecar".to_owned()).spawn(move || {
            let Ok(runtime) = take.recv() else { return };
            runtime.block_on(async {
                let _ = stopped.await;
                core.departures.finish().await;
            });
            // Its tasks may hold each other, so all of them are dropped here, with their connections.
            drop(runtime);
            if let Some(session) = core.shut() {
                session.end();
            }
            core.transport.close(closed());
        });
        if let Err(e) = started {
            runtime.shutdown_background();
            return Err(failed(e));
        }
        let _ = give.send(runtime);
        *stop = Some(sender);
        Ok(self.core.handle.get_or_init(|| handle))
    }

    /// Starts work of a stream in the client's thread.
    pub fn start(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<AbortHandle> {
        Ok(self.handle()?.spawn(work).abort_handle())
    }

    /// Runs a call. If the future is dropped, the call is, too.
    pub fn run<T: Send + 'static>(&self, call: impl Future<Output = Result<T>> + Send + 'static) -> impl Future<Output = Result<T>> + Send {
        self.running(call, false)
    }

    /// Runs a call. If the future is dropped, the call goes on in the client's thread.
    pub fn run_through<T: Send + 'static>(&self, call: impl Future<Output = Result<T>> + Send + 'static) -> impl Future<Output = Result<T>> + Send {
        self.running(call, true)
    }

    // Not an async function, whose future would have the call's inside.
    fn running<T: Send + 'static>(&self, call: impl Future<Output = Result<T>> + Send + 'static, through: bool) -> impl Future<Output = Result<T>> + Send {
        let call = self.handle().map(|handle| Running { call: Some(Box::pin(call)), handle: handle.clone(), through });
        async move { call?.await }
    }
}

/// A call that its caller polls. Its connections and its times are those of the client's runtime, so the caller may have any executor.
struct Running<F: Future<Output: Send> + Send + 'static> {
    /// `None`: it is done.
    call: Option<Pin<Box<F>>>,
    handle: Handle,
    /// It goes on without its caller.
    through: bool,
}

impl<F: Future<Output: Send> + Send + 'static> Future for Running<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(mut call) = self.call.take() else { return Poll::Pending };
        let inside = self.handle.enter();
        let done = call.as_mut().poll(cx);
        drop(inside);
        if done.is_pending() {
            self.call = Some(call);
        }
        done
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Running<F> {
    fn drop(&mut self) {
        if let (Some(call), true) = (self.call.take(), self.through) {
            drop(self.handle.spawn(call));
        }
    }
}

/// A part of a call that runs in the client's thread, and ends with this.
pub(crate) struct Task<T>(JoinHandle<Result<T>>);

impl<T> Task<T> {
    pub fn new(task: JoinHandle<Result<T>>) -> Task<T> {
        Task(task)
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.0).poll(cx).map(|joined| match joined {
            Ok(result) => result,
            Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
            Err(_) => Err(closed()),
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Keys that this client gives back just now, because a guard or a call was dropped. The next acquire of such a key waits for it, so that it does not find
/// the key held by the client itself.
#[derive(Clone, Default)]
pub(crate) struct Departures(Arc<(Mutex<HashMap<String, usize>>, Notify)>);

/// One of them, until it is dropped.
pub(crate) struct Departure {
    all: Departures,
    key: String,
}

impl Departures {
    pub fn begin(&self, key: &str) -> Departure {
        *crate::lock(&self.0 .0).entry(key.to_owned()).or_default() += 1;
        Departure { all: self.clone(), key: key.to_owned() }
    }

    /// Waits until none of the keys departs, but not for long.
    pub async fn wait(&self, keys: &[String]) {
        self.until(|departing| !keys.iter().any(|key| departing.contains_key(key))).await;
    }

    /// Waits for all of them, but not for long.
    async fn finish(&self) {
        self.until(HashMap::is_empty).await;
    }

    async fn until(&self, is: impl Fn(&HashMap<String, usize>) -> bool) {
        let end = Instant::now() + DEPARTURE_PATIENCE;
        loop {
            let changed = self.0 .1.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is(&crate::lock(&self.0 .0)) || tokio::time::timeout_at(end.into(), changed).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        let mut departing = crate::lock(&self.all.0 .0);
        if let Some(n) = departing.get_mut(&self.key) {
            *n -= 1;
            if *n == 0 {
                departing.remove(&self.key);
            }
        }
        drop(departing);
        self.all.0 .1.notify_waiters();
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Limits how long a call goes on in an outage of the sidecar, such as its restart.
pub(crate) struct Patience {
    /// `None`: for ever.
    limit: Option<Duration>,
    until: Option<Instant>,
    next: Duration,
}

impl Patience {
    pub fn new(limit: Option<Duration>) -> Patience {
        let limit = limit.filter(|limit| Instant::now().checked_add(*limit).is_some()); // what no clock reaches is no limit
        Patience { limit, until: None, next: FIRST_PAUSE }
    }

    /// Waits before the next try; false if the limit is over.
    pub async fn pause(&mut self) -> bool {
        let mut wait = self.next;
        if let Some(limit) = self.limit {
            let now = Instant::now();
            if self.until.is_none() {
                (self.until, wait) = (now.checked_add(limit), FIRST_PAUSE);
            }
            let left = self.until.map_or(limit, |until| until.saturating_duration_since(now));
            if left.is_zero() {
                return false;
            }
            wait = wait.min(left);
        }
        tokio::time::sleep(wait).await;
        self.next = (2 * wait).min(LONGEST_PAUSE);
        true
    }

    /// The sidecar has answered.
    pub fn renew(&mut self) {
        self.until = None;
        self.next = FIRST_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit that no clock reaches is none: it ends nothing, and does not panic.
    #[tokio::test]
    async fn patience_without_an_end() {
        assert!(Patience::new(Some(Duration::MAX)).pause().await);
    }
}
