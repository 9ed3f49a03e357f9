use std::fmt;
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use crate::core::{Core, Inner, OnOutage, Patience};
use crate::endpoint::{Endpoint, Given, Place};
use crate::error::{closed, invalid, ours, Error, Result, Subject};
use crate::items::{events, leader_data, leaders, pages, Items};
use crate::lock::{Guard, Guards, Lock};
use crate::options::{lacking, Options, Query, Release};
use crate::scope::place;
use crate::session::{json, Amend, Asked, Claim, Grant, Session};
use crate::trace::{self, Parent};
use crate::transport::{lock_path, query_of, Call, Headers, Transport};
use crate::types::{to_ms, Description, Event, FromAnswer, LockInfo, Mode, Released, Status, Waiter, WireGrant};

const TIMEOUT: Duration = Duration::from_secs(10);
const RECONNECT: Duration = Duration::from_secs(30);

/// The configuration of a client.
#[derive(Clone, Default)]
pub struct Builder {
    given: Given,
    name: Option<String>,
    ttl: Option<Duration>,
    timeout: Option<Duration>,
    reconnect: Option<Duration>,
    on_outage: Option<OnOutage>,
    user_agent: Option<String>,
}

impl Builder {
    /// The sidecar's socket. Default: `LOCKSIDECAR_SOCKET`, else `/run/locksidecar/locksidecar.sock` if its folder is there, else
    /// `~/.locksidecar/locksidecar.sock`.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Builder {
        self.given.socket = Some(path.into());
        self
    }

    /// Names the sidecar instead of the socket: `unix:///PATH`, `http://HOST:PORT`, or with the feature `tls` `https://HOST:PORT`. Default:
    /// `LOCKSIDECAR_URL`, which wins over `LOCKSIDECAR_SOCKET`.
    pub fn url(mut self, url: impl Into<String>) -> Builder {
        self.given.url = Some(url.into());
        self
    }

    /// A file whose first line is the token for calls over TCP. It is read again when it changes. Default: `LOCKSIDECAR_TOKEN_FILE`, else none.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Builder {
        self.given.token_file = Some(path.into());
        self
    }

    /// A file with the CA of the sidecar's certificate, in PEM. Default: `LOCKSIDECAR_CA_FILE`, else the system's.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Builder {
        self.given.ca_file = Some(path.into());
        self
    }

    /// The public name of the session, which others see. Default: a short random id.
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// How long the locks outlive a dead sidecar (less than twice that). Default: the sidecar's.
    pub fn ttl(mut self, ttl: Duration) -> Builder {
        self.ttl = Some(ttl);
        self
    }

    /// The most time for an answer, in addition to a wait. Default: 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Builder {
        self.timeout = Some(timeout);
        self
    }

    /// How long waits and event streams go on in an outage of the sidecar. Default: 30 s; [`Duration::ZERO`]: not at all,
    /// [`Duration::MAX`]: for ever.
    pub fn reconnect(mut self, most: Duration) -> Builder {
        self.reconnect = Some(most);
        self
    }

    /// Called when a wait or an event stream goes on in an outage, with its reason, once in each outage, by the task that waits or by the client's thread. It must
    /// not block.
    pub fn on_outage(mut self, f: impl Fn(&Error) + Send + Sync + 'static) -> Builder {
        self.on_outage = Some(Arc::new(f));
        self
    }

    /// Sent with each call. Default: `locksidecar-rust`.
    pub fn user_agent(mut self, agent: impl Into<String>) -> Builder {
        self.user_agent = Some(agent.into());
        self
    }

    /// Makes the client, without a call. A wrong setting is the error of each call.
    pub fn build(self) -> Client {
        let endpoint = Endpoint::new(&self.given, |name| std::env::var(name).ok(), |path| path.exists());
        let agent = self.user_agent.unwrap_or_else(|| "locksidecar-rust".to_owned());
        let timeout = self.timeout.filter(|timeout| !timeout.is_zero()).unwrap_or(TIMEOUT);
        let transport = Transport::new(endpoint, agent);
        let core = Core::new(transport, self.name, self.ttl, timeout, self.reconnect.unwrap_or(RECONNECT), self.on_outage);
        Client { inner: Arc::new(Inner::new(core)) }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("name", &self.name).finish_non_exhaustive()
        // a URL may have a password
    }
}

/// Gets locks from the sidecar. Make one for each process; clones share it. See the crate's documentation about its session.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Default for Client {
    fn default() -> Client {
        Client::new()
    }
}

impl Core {
    /// Makes a repeatable call, and repeats it if its connection or session has ended.
    pub async fn read<T, F, R>(self: &Arc<Self>, run: F) -> Result<T>
    where
        F: Fn(Arc<Session>) -> R,
        R: Future<Output = Result<T>>,
    {
        let session = self.caller().await?;
        let e = match run(session.clone()).await {
            Err(e) if e.broke_off() => e,
            other => return other,
        };
        if e.is_code(&["session_ended"]) {
            session.end();
        }
        run(self.caller().await?).await
    }
}

/// Tells the app of an outage. A panic of the app must not end the call; the hook for panics has reported it.
pub(crate) fn tell(core: &Core, e: &Error) {
    if let Some(on_outage) = &core.on_outage {
        let _ = catch_unwind(AssertUnwindSafe(|| on_outage(e)));
    }
}

type Held = (Arc<Session>, Vec<(WireGrant, Arc<Grant>)>);

/// Acquires. A call that waits goes on after an outage of the sidecar, for the rest of its time.
async fn acquire(core: &Arc<Core>, o: &Options, asked: &mut Asked, headers: Headers) -> Result<Held> {
    let began = Instant::now();
    let mut body = o.body.clone();
    let waits = body.wait_ms != 0;
    let mut patience = Patience::new(Some(o.wait.map_or(core.reconnect, |wait| wait.min(core.reconnect))));
    let (mut last, mut told, mut again) = (None, false, false);
    loop {
        let mut e = match core.open().await {
            Err(e) => e,
            Ok(session) => {
                if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, &session)) {
                    patience.renew();
                    (last, told) = (Some(session.clone()), false);
                }
                match session.acquire(asked, &body, headers.clone()).await {
                    Ok(grants) => return Ok((session, grants)),
                    Err(e) => {
                        if e.is_code(&["session_ended"]) {
                            session.end(); // before its stream ends
                        }
                        e
                    }
                }
            }
        };
        if core.is_closed() && e.is_away() {
            e = closed();
        }
        if !waits {
            // Once more, if only its connection or session has ended.
            if again || !e.broke_off() {
                return Err(e);
            }
            again = true;
            continue;
        }
        if !core.was_connected() || !e.is_away() {
            return Err(e); // a client without a session does not wait for a sidecar
        }
        if !told {
            tell(core, &e);
        }
        told = true;
        if !patience.pause().await {
            return Err(e);
        }
        if let Some(wait) = o.wait {
            body.wait_ms = to_ms(wait.saturating_sub(began.elapsed())).max(1);
        }
    }
}

impl Client {
    /// A client with the settings of the environment, without a call.
    pub fn new() -> Client {
        Client::builder().build()
    }

    /// A configuration with the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The path of the sidecar's socket, or its URL over TCP.
    pub fn address(&self) -> &str {
        &self.inner.core.transport.at.name
    }

    /// The path of the sidecar's socket; `None` over TCP.
    pub fn socket(&self) -> Option<&std::path::Path> {
        match &self.inner.core.transport.at.place {
            Place::Socket(path) => Some(path),
            _ => None,
        }
    }

    /// Opens the session now, so that a missing sidecar shows at the start.
    pub async fn connect(&self) -> Result<()> {
        let core = self.inner.core.clone();
        self.inner.run(async move { core.open().await.map(drop) }).await
    }

    /// Ends the session, which releases all locks, and ends waiting calls and event streams with an error of which [`Error::is_closed`] is true. A drop
    /// of the last clone, of the guards and of the streams does the same, in the background.
    pub async fn close(&self) {
        let core = self.inner.core.clone();
        let _ = self
            .inner
            .run_through(async move {
                // In the client's thread, because its caller may not poll.
                let _ = tokio::spawn(async move { core.close().await }).await;
                Ok(())
            })
            .await;
    }

    /// Waits for a lock, until this future is dropped, or as [`Options::wait`] says. The guard releases it. The error is [`Error::WaitTimeout`], with a wait
    /// of 0 [`Error::LockHeld`].
    ///
    /// If this future is dropped, nothing stays granted: a grant under way is withdrawn.
    ///
    /// ```no_run
    /// # use locksidecar::{Client, Options};
    /// # async fn example() -> locksidecar::Result<()> {
    /// let client = Client::new();
    /// let lock = client.acquire("report:daily", Options::new()).await?;
    /// println!("fencing token {}", lock.token());
    /// lock.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire(&self, key: &str, options: Options) -> Result<Guard> {
        let guards = self.get_all(vec![key.to_owned()], false, options).await?;
        guards.only().ok_or_else(|| ours("bad_answer", key, "the sidecar granted no lock").into())
    }

    /// Gets a lock without a wait: `None` if another caller has it.
    pub async fn try_acquire(&self, key: &str, options: Options) -> Result<Option<Guard>> {
        match self.acquire(key, options.wait(Duration::ZERO)).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::LockHeld(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Gets 1 to 100 different locks, all or none. There are no deadlocks, whatever the order of the keys. The error names the first key that is held.
    pub async fn acquire_many<I>(&self, keys: I, options: Options) -> Result<Guards>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let keys: Vec<String> = keys.into_iter().map(Into::into).collect();
        if keys.is_empty() {
            return Err(invalid("keys: they are 1 to 100 different ones"));
        }
        self.get_all(keys, true, options).await
    }

    /// Waits for a share of a lock: shared holders do not exclude each other. It is [`Client::acquire`] with [`Options::shared`].
    pub async fn shared(&self, key: &str, options: Options) -> Result<Guard> {
        self.acquire(key, options.shared()).await
    }

    async fn get_all(&self, keys: Vec<String>, many: bool, options: Options) -> Result<Guards> {
        let mut o = options.checked()?;
        if many {
            o.body.keys = keys.clone();
        }
        place(&self.inner.core, &keys, &mut o)?;
        let parent = Parent::here();
        let (span, headers) = trace::acquire(&keys, o.body.mode.unwrap_or(Mode::Exclusive), &parent, o.traceparent.as_ref());
        let inner = self.inner.clone();
        let done = self
            .inner
            .run(async move {
                inner.core.departures.wait(&keys).await;
                let mut asked = Asked::new(&inner.core, keys, &o.body, o.named);
                let (session, grants) = acquire(&inner.core, &o, &mut asked, headers).await?;
                let guards = grants.into_iter().map(|(wire, grant)| Guard::new(Lock::new(&inner, &session, wire, grant, &o, &parent))).collect();
                asked.done();
                Ok(Guards::new(guards))
            })
            .await;
        span.end(done.as_ref().map(|guards| match &guards[..] {
            [guard] => (if guard.reentry() > 1 { "reentered" } else { "granted" }, Some(guard.token())),
            _ => ("granted", None),
        }));
        done
    }

    async fn read<T, F, R>(&self, run: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(Arc<Session>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T>> + Send + 'static,
    {
        let core = self.inner.core.clone();
        self.inner.run(async move { core.read(run).await }).await
    }

    /// Shows a lock, free or held. The sidecar may answer from its memory.
    pub async fn get(&self, key: &str) -> Result<LockInfo> {
        self.info(key, false).await
    }

    /// [`Client::get`] that asks the store.
    pub async fn get_fresh(&self, key: &str) -> Result<LockInfo> {
        self.info(key, true).await
    }

    async fn info(&self, key: &str, fresh: bool) -> Result<LockInfo> {
        let key = key.to_owned();
        self.read(move |session| {
            let key = key.clone();
            async move {
                let call = Call { method: "GET", path: lock_path(&key, ""), about: Subject::key(&key), fresh, repeatable: true, ..Call::default() };
                let text = session.text(call).await?;
                serde_json::from_slice(&text)
                    .and_then(LockInfo::from_answer)
                    .map_err(|e| ours("bad_answer", &key, format!("the lock cannot be read ({e})")).because(e))
            }
        })
        .await
    }

    /// Lists the held locks by key, page by page.
    pub fn locks(&self, query: Query) -> Items<LockInfo> {
        pages(&self.inner, "/v1/locks".to_owned(), &query, "list", "locks")
    }

    /// Lists the calls of all pods that wait, by key and in the order of each queue.
    pub fn waiters(&self, query: Query) -> Items<Waiter> {
        pages(&self.inner, "/v1/waiters".to_owned(), &query, "waiters", "waiters")
    }

    /// Lists the calls that wait for a key, in their order.
    pub fn waiters_of(&self, key: &str) -> Items<Waiter> {
        pages(&self.inner, lock_path(key, "/waiters"), &Query::new(), "waiters", "waiters")
    }

    /// Follows a key, from all pods. The first event is its state, also after each reconnection. Delivery is best effort: to decide something, acquire the
    /// lock. It ends with an error, after the outage of [`Builder::reconnect`] for example.
    pub fn events(&self, key: &str) -> Items<Event> {
        events(&self.inner, key, Some)
    }

    /// The data of the leader of a key: null without a leader, or if it has none.
    pub async fn leader(&self, key: &str) -> Result<Value> {
        Ok(leader_data(self.get(key).await?.holder))
    }

    /// The data of the leader, now and after each change: null without a leader. It is as [`Client::events`] in all else. A later update of the data is not
    /// an event.
    pub fn watch_leader(&self, key: &str) -> Items<Value> {
        events(&self.inner, key, leaders())
    }

    /// Asks the holder of a lock in any pod to finish and to release it, or all shared holders. They may go on. The reason is for people, and may be empty.
    /// The error is [`Error::NotHeld`] if there is no holder.
    pub async fn stop(&self, key: &str, reason: &str) -> Result<()> {
        self.ask_to_stop(key, None, reason).await
    }

    /// [`Client::stop`] for the holder that has the token.
    pub async fn stop_holder(&self, key: &str, token: i64, reason: &str) -> Result<()> {
        self.ask_to_stop(key, Some(token), reason).await
    }

    async fn ask_to_stop(&self, key: &str, token: Option<i64>, reason: &str) -> Result<()> {
        #[derive(Serialize)]
        struct Body<'a> {
            #[serde(skip_serializing_if = "str::is_empty")]
            reason: &'a str,
        }
        let core = self.inner.core.clone();
        let call = Call {
            method: "POST",
            path: lock_path(key, &format!("/stop{}", query_of(&of_token(token)))),
            body: Some(json(&Body { reason })?),
            timeout: Some(core.timeout),
            about: Subject::key(key),
            ..Call::default()
        };
        self.inner
            .run(async move {
                lacking(&core.caller().await?.about, &["stop"])?;
                core.transport.text(&call).await.map(drop)
            })
            .await
    }

    /// Breaks a lock of any holder, or of all shared holders. It returns when the grant is over, at the latest when its lease ends. The holder may still be
    /// working. The error is [`Error::Forbidden`] without `LOCKSIDECAR_ALLOW_FORCE`, and [`Error::NotHeld`] if there is no holder.
    pub async fn force_release(&self, key: &str) -> Result<()> {
        self.force(key, None).await
    }

    /// [`Client::force_release`] for the holder that has the token.
    pub async fn force_release_holder(&self, key: &str, token: i64) -> Result<()> {
        self.force(key, Some(token)).await
    }

    async fn force(&self, key: &str, token: Option<i64>) -> Result<()> {
        let core = self.inner.core.clone();
        let mut values = of_token(token);
        values.push(("force", "true".to_owned()));
        let call = Call { method: "DELETE", path: lock_path(key, &query_of(&values)), waits: true, about: Subject::key(key), ..Call::default() };
        self.inner.run(async move { core.transport.text(&call).await.map(drop) }).await
    }

    /// Releases a lock by its token: one of [`Options::bind_to_ttl`] from anywhere, or one of this client. It goes on if this future is dropped.
    pub async fn release(&self, key: &str, token: i64, options: Release) -> Result<Released> {
        let claim = Claim::new(token, None, options)?;
        let (span, headers) = trace::release(key, token, &Parent::here(), None);
        let (core, key) = (self.inner.core.clone(), key.to_owned());
        let done = self.inner.run_through(async move { core.caller().await?.release(&key, &claim, headers).await }).await;
        span.end(done.as_ref().map(|_| ("released", Some(token))));
        done
    }

    /// Releases what the acquire with this request id has got, or may get: see [`Options::request_id`]. [`Released::free`] is false if it has nothing.
    pub async fn release_request(&self, key: &str, uuid: &str) -> Result<Released> {
        let claim = Claim { request_id: Some(uuid.to_owned()), ..Claim::default() };
        let (core, key) = (self.inner.core.clone(), key.to_owned());
        self.inner.run_through(async move { core.caller().await?.release(&key, &claim, Headers::new()).await }).await
    }

    /// Asks whether a lock is held under its token.
    pub async fn check(&self, key: &str, token: i64) -> Result<Status> {
        self.amend(key, Amend { token, ..Amend::default() }).await
    }

    /// Replaces the data of a lock by its token.
    pub async fn update(&self, key: &str, token: i64, data: impl Serialize) -> Result<Status> {
        let data = serde_json::to_value(data).map_err(|e| invalid(format!("data: it cannot be made into JSON: {e}")))?;
        self.amend(key, Amend { token, data: Some(data), ..Amend::default() }).await
    }

    /// Sets the remaining time of a lock of [`Options::bind_to_ttl`] by its token, from now.
    pub async fn extend(&self, key: &str, token: i64, ttl: Duration) -> Result<Status> {
        self.amend(key, Amend { token, ttl_ms: Some(to_ms(ttl)), ..Amend::default() }).await
    }

    async fn amend(&self, key: &str, body: Amend) -> Result<Status> {
        let key = key.to_owned();
        self.read(move |session| {
            let (key, body) = (key.clone(), body.clone());
            async move { session.amend(&key, &body, None).await.map(Status::from) }
        })
        .await
    }

    /// Asks the sidecar for its version and features.
    pub async fn describe(&self) -> Result<Description> {
        let core = self.inner.core.clone();
        self.inner.run(async move { Ok(core.caller().await?.about.clone()) }).await
    }

    /// Makes any call of the [API](https://github.com/locksidecar/locksidecar/blob/main/api/openapi.yaml), without the session. The body is sent as JSON;
    /// null: none. A GET asks the store. It is for what has no method of its own.
    pub async fn call(&self, method: &'static str, path: &str, body: &Value) -> Result<Value> {
        let core = self.inner.core.clone();
        let call = Call {
            method,
            path: path.to_owned(),
            body: if body.is_null() { None } else { Some(json(body)?) },
            timeout: Some(core.timeout),
            fresh: method == "GET",
            ..Call::default()
        };
        if !path.starts_with('/') || path.bytes().any(|b| !b.is_ascii_graphic()) || method.bytes().any(|b| !b.is_ascii_uppercase()) {
            return Err(invalid(format!("path: {path:?} is none, or {method:?} is no method")));
        }
        self.inner.run(async move { core.transport.answer(&call).await }).await
    }
}

fn of_token(token: Option<i64>) -> Vec<(&'static str, String)> {
    token.map(|token| ("token", token.to_string())).into_iter().collect()
}
