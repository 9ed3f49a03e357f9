//! An explicit session. It lives as long as its event stream, a connection of its own. Its calls use other connections.

use std::collections::hash_map::Entry::Vacant;
use std::collections::HashMap;
use std::future::Future;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::core::{Core, Departure, Patience};
use crate::error::{closed, lost, ours, session_ended, Error, Result, Subject};
use crate::latch::Latch;
use crate::options::{lacking, AcquireBody, OnStop, Release};
use crate::sse::Stream;
use crate::transport::{lock_path, query_of, Call, Headers, SILENCE};
use crate::types::{ms, to_ms, Bind, Description, Mode, Outcome, Released, Stopping, WireGrant};

/// The limit of the answer to a withdrawal.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(2);
/// For how long a release that had no answer is repeated if there is no session, whose end would release the lock.
const OWE_TIME: Duration = Duration::from_secs(60);
/// The least pause between two questions, and the least time for an answer.
const LEAST_ASK: Duration = Duration::from_millis(50);
const LEAST_PATIENCE: Duration = Duration::from_millis(250);

pub(crate) struct Session {
    me: Weak<Session>,
    pub core: Arc<Core>,
    pub about: Description,
    /// It gives access to the session, so nothing shows it. `None`: calls without a session.
    id: Option<String>,
    /// Set at the end of the session. Calls that wait end with it.
    life: Latch<Error>,
    /// Set when the stream is to be closed.
    hang_up: Latch<()>,
    state: Mutex<State>,
}

type GrantId = (String, i64);

#[derive(Default)]
struct State {
    ended: bool,
    grants: HashMap<GrantId, Arc<Grant>>,
    /// By TTL in ms; 0: that of the session.
    leases: HashMap<i64, Lease>,
    /// The stream may have news of a grant before its answer is read. The news waits for the answers that are due.
    due: usize,
    early: HashMap<GrantId, Vec<News>>,
}

/// For how long the locks of one TTL are held without news from the sidecar. A sidecar that hangs renews nothing and says nothing, and at the end of the
/// lease others get its locks. So while there are such locks, the session asks for one of them after each third of the lease. The answer is news of all,
/// because a sidecar that answers also tells of lost locks.
struct Lease {
    until: Instant,
    /// Of the next question.
    due: Instant,
}

impl Lease {
    /// The app may rely on the lease until this time.
    fn prove(&mut self, until: Instant) {
        self.until = self.until.max(until);
        self.plan();
    }

    fn plan(&mut self) {
        let now = Instant::now();
        self.due = now + (self.until.saturating_duration_since(now) / 3).max(LEAST_ASK);
    }
}

/// News of a lock.
#[derive(Clone)]
enum News {
    Lost(String),
    Stop(Stopping),
}

/// The handle of an acquire over all its calls. If it is dropped while a call has no answer, it withdraws what that may have got.
pub(crate) struct Asked {
    core: Arc<Core>,
    pub keys: Vec<String>,
    id: String,
    bind: Option<Bind>,
    /// Other parts of the app may hold the grant of a request that it has named, so that stays.
    named: bool,
    may_have: bool,
}

impl Asked {
    pub fn new(core: &Arc<Core>, keys: Vec<String>, body: &AcquireBody, named: bool) -> Asked {
        Asked { core: core.clone(), keys, id: body.request_id.clone(), bind: body.bind, named, may_have: false }
    }

    /// Its grants have guards.
    pub fn done(&mut self) {
        self.may_have = false;
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if !self.may_have || self.named || self.core.is_closed() {
            return;
        }
        let session = match self.core.session() {
            Some(session) => session,
            None if self.bind == Some(Bind::Ttl) => Session::none(&self.core, Description::default()),
            None => return, // the grant has ended with its session
        };
        for key in std::mem::take(&mut self.keys) {
            let departure = self.core.departures.begin(&key);
            self.core.spawn(session.clone().withdraw(key, self.id.clone(), departure));
        }
    }
}

impl Session {
    fn new(core: &Arc<Core>, about: Description, id: Option<String>) -> Arc<Session> {
        Arc::new_cyclic(|me| Session { me: me.clone(), core: core.clone(), about, id, life: Latch::new(), hang_up: Latch::new(), state: Mutex::default() })
    }

    /// For calls without a session.
    pub fn none(core: &Arc<Core>, about: Description) -> Arc<Session> {
        Session::new(core, about, None)
    }

    /// Opens a session.
    pub async fn open(core: &Arc<Core>) -> Result<Arc<Session>> {
        #[derive(Serialize)]
        struct Body<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            name: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            ttl_ms: Option<i64>,
        }
        #[derive(Deserialize)]
        struct Opened {
            session: String,
        }
        let about = core.describe().await?;
        let body = json(&Body { name: core.name.as_deref(), ttl_ms: core.ttl.map(to_ms) })?;
        let call = Call { method: "POST", path: "/v1/sessions".to_owned(), body: Some(body), timeout: Some(core.timeout), ..Call::default() };
        let mut stream = core.transport.open(&call).await?;
        let first = tokio::time::timeout(core.timeout, stream.next(SILENCE)).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let (name, data) = first.map_err(|e| core.transport.ended("", e))?;
        let opened = serde_json::from_slice::<Opened>(&data).ok().filter(|opened| name == "session" && !opened.session.is_empty());
        let Some(opened) = opened else {
            return Err(ours("bad_answer", "", format!("the sidecar at {} began the session without its id", core.transport.at.name)).into());
        };
        let session = Session::new(core, about, Some(opened.session));
        core.spawn(session.clone().read(stream));
        Ok(session)
    }

    /// Receives the session's events until its end.
    async fn read(self: Arc<Self>, mut stream: Stream) {
        /// Whatever ends the task, the session has ended.
        struct Ends<'a>(&'a Session);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        #[derive(Deserialize)]
        struct Told {
            key: String,
            token: i64,
            #[serde(default)]
            reason: Option<String>,
        }
        let session = &*self;
        let _ends = Ends(session);
        loop {
            let event = tokio::select! {
                biased;
                () = session.hang_up.wait() => return,
                event = stream.next(SILENCE) => event,
            };
            let Ok((name, data)) = event else { return };
            let Ok(told) = serde_json::from_slice::<Told>(&data) else { continue };
            let news = match name.as_str() {
                "lost" => News::Lost(told.reason.unwrap_or_default()),
                "stop" => News::Stop(Stopping { reason: told.reason.filter(|reason| !reason.is_empty()), requested_at: None }),
                _ => continue,
            };
            session.receive((told.key, told.token), news);
        }
    }

    fn receive(&self, id: GrantId, news: News) {
        let mut state = crate::lock(&self.state);
        let grant = state.grants.get(&id).cloned();
        match &grant {
            None if state.due > 0 => state.early.entry(id).or_default().push(news.clone()),
            Some(_) if matches!(news, News::Lost(_)) => drop(state.grants.remove(&id)),
            _ => {}
        }
        drop(state);
        if let Some(grant) = grant {
            grant.hear(news);
        }
    }

    /// Notes that the session is over: its locks are lost. It closes the stream, because the sidecar may not know. Then it would go on to hold the locks.
    pub fn end(&self) {
        self.forget("disconnected", session_ended());
        self.hang_up.set(());
    }

    fn forget(&self, reason: &str, cause: Error) {
        let grants = {
            let mut state = crate::lock(&self.state);
            if state.ended || self.id.is_none() {
                return;
            }
            state.ended = true;
            std::mem::take(&mut state.grants)
        };
        self.core.forget(self);
        self.life.set(cause);
        for grant in grants.into_values() {
            grant.lose(reason, "");
        }
    }

    pub fn is_over(&self) -> bool {
        crate::lock(&self.state).ended
    }

    /// Ends the session at the sidecar. When it returns, the locks are free.
    pub async fn close(&self) {
        self.forget("closed", closed());
        if let Some(id) = &self.id {
            let call = Call { method: "DELETE", path: format!("/v1/sessions/{id}"), timeout: Some(self.core.timeout), ..Call::default() };
            let _ = self.core.transport.text(&call).await; // if the sidecar has gone, so has the session
        }
        self.hang_up.set(());
    }

    /// Makes a call in the session.
    pub async fn text(&self, call: Call) -> Result<Vec<u8>> {
        self.core.transport.text(&self.own(call)).await
    }

    async fn answer<T: serde::de::DeserializeOwned>(&self, call: Call) -> Result<T> {
        self.core.transport.answer(&self.own(call)).await
    }

    fn own(&self, mut call: Call) -> Call {
        call.session = self.id.clone();
        if call.timeout.is_none() && !call.waits {
            call.timeout = Some(self.core.timeout);
        }
        call
    }

    /// Acquires one key, or with several in the body all of them.
    pub async fn acquire(&self, asked: &mut Asked, body: &AcquireBody, headers: Headers) -> Result<Vec<(WireGrant, Arc<Grant>)>> {
        #[derive(Deserialize)]
        struct Several {
            locks: Vec<WireGrant>,
        }
        lacking(&self.about, &body.needs())?;
        let several = !body.keys.is_empty();
        let mut call = Call {
            method: "PUT",
            path: lock_path(&asked.keys[0], ""),
            body: Some(json(body)?),
            timeout: u64::try_from(body.wait_ms).ok().map(|wait| Duration::from_millis(wait).saturating_add(self.core.timeout)),
            about: Subject::key(&asked.keys[0]),
            waits: true,
            repeatable: true,
            headers,
            ..Call::default()
        };
        if several {
            (call.method, call.path, call.about) = ("POST", "/v1/locks".to_owned(), Subject::default());
        }
        let _due = Due::new(self);
        let sent = Instant::now();
        let before = std::mem::replace(&mut asked.may_have, true);
        let answer = async {
            if several {
                return Ok(self.answer::<Several>(call).await?.locks);
            }
            let one: WireGrant = self.answer(call).await?;
            if one.granted {
                return Ok(vec![one]);
            }
            let detail = "the holder has done the work; its result is in Problem::result";
            let mut skipped = ours("skipped", &one.key, detail);
            (skipped.status, skipped.result) = (Some(200), one.result);
            Err(skipped.into())
        };
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            why = self.life.wait() => Err(why),
        };
        match answer {
            Ok(grants) => self.adopt(grants, sent, body.ttl_ms),
            Err(e) => {
                let answered = e.problem().status.is_some() && !e.has_no_answer();
                asked.may_have = before || !(answered || e.is_code(&["unreachable", "invalid_request"]));
                Err(e)
            }
        }
    }

    /// Notes grants, and delivers the news that came before.
    fn adopt(&self, wires: Vec<WireGrant>, sent: Instant, ttl: Option<i64>) -> Result<Vec<(WireGrant, Arc<Grant>)>> {
        let mut state = crate::lock(&self.state);
        let mut held = Vec::with_capacity(wires.len());
        for wire in wires {
            let known = sent + ms(wire.waited_ms) + ms(wire.expires_in_ms);
            let id = (wire.key.clone(), wire.token);
            if wire.bind == Some(Bind::Ttl) {
                let grant = Grant::new(&id, None);
                grant.expire(&self.core, sent, known);
                held.push((wire, grant));
                continue;
            }
            if state.ended {
                return Err(session_ended());
            }
            let ttl = ttl.unwrap_or(0);
            if let Vacant(lease) = state.leases.entry(ttl) {
                lease.insert(Lease { until: known, due: known });
                if let Some(session) = self.me.upgrade() {
                    self.core.spawn(session.keep(ttl));
                }
            }
            if let Some(lease) = state.leases.get_mut(&ttl) {
                lease.prove(known);
            }
            let grant = state.grants.entry(id.clone()).or_insert_with(|| Grant::new(&id, Some(ttl))).clone();
            for news in state.early.remove(&id).unwrap_or_default() {
                if matches!(news, News::Lost(_)) {
                    state.grants.remove(&id);
                }
                grant.hear(news); // it has no entry yet, so nothing is called
            }
            held.push((wire, grant));
        }
        Ok(held)
    }

    /// Asks for the locks of a lease, until there are none.
    async fn keep(self: Arc<Self>, ttl: i64) {
        while let Some((grant, due)) = self.next(ttl) {
            if due > Instant::now() {
                tokio::select! {
                    () = tokio::time::sleep_until(due.into()) => continue, // there may have been news meanwhile
                    _ = self.life.wait() => return,
                }
            }
            self.ask(ttl, &grant).await;
        }
    }

    /// A lock of a lease, and when to ask for it. Without such a lock, the lease is forgotten.
    fn next(&self, ttl: i64) -> Option<(Arc<Grant>, Instant)> {
        let mut state = crate::lock(&self.state);
        let grant = state.grants.values().find(|grant| grant.lease == Some(ttl)).cloned();
        match (grant, state.leases.get(&ttl)) {
            (Some(grant), Some(lease)) => Some((grant, lease.due)),
            _ => {
                state.leases.remove(&ttl);
                None
            }
        }
    }

    /// Asks for a lock of a lease, and decides whether the lease has ended.
    async fn ask(&self, ttl: i64, grant: &Arc<Grant>) {
        let sent = Instant::now();
        let Some(until) = crate::lock(&self.state).leases.get(&ttl).map(|lease| lease.until) else { return };
        let patience = until.saturating_duration_since(sent).max(LEAST_PATIENCE);
        let question = Amend { token: grant.token, ..Amend::default() };
        let answer = tokio::select! {
            biased;
            answer = self.amend(&grant.key, &question, Some(patience)) => answer,
            _ = self.life.wait() => return,
        };
        let now = Instant::now();
        match answer {
            Ok(status) => {
                if let Some(lease) = crate::lock(&self.state).leases.get_mut(&ttl) {
                    lease.prove(sent + ms(status.expires_in_ms));
                }
            }
            // Of this lock only.
            Err(Error::LockLost(p)) => {
                self.drop_grant(grant);
                grant.lose(&p.reason, "");
            }
            Err(Error::NotHolder(_)) => self.drop_grant(grant),
            Err(Error::SessionEnded(_)) => self.end(),
            Err(_) => {
                let mut over = false;
                if let Some(lease) = crate::lock(&self.state).leases.get_mut(&ttl) {
                    over = now >= lease.until;
                    lease.plan();
                }
                // If the limit came much too late, this process was stopped, and the answer may be unread: ask once more.
                if over && now - sent < patience + LEAST_PATIENCE {
                    self.give_up(ttl);
                }
            }
        }
    }

    fn drop_grant(&self, grant: &Arc<Grant>) {
        let mut state = crate::lock(&self.state);
        let id = (grant.key.clone(), grant.token);
        if state.grants.get(&id).is_some_and(|known| Arc::ptr_eq(known, grant)) {
            state.grants.remove(&id);
        }
    }

    /// Notes that a lease has ended. If the sidecar goes on in time, it holds the locks nevertheless, so they are released.
    fn give_up(&self, ttl: i64) {
        let mut lost = Vec::new();
        crate::lock(&self.state).grants.retain(|_, grant| {
            let ended = grant.lease == Some(ttl);
            if ended {
                lost.push(grant.clone());
            }
            !ended
        });
        let Some(session) = self.me.upgrade() else { return };
        for grant in lost {
            grant.lose("expired", "the sidecar does not answer, and the lease has ended");
            let session = session.clone();
            self.core.spawn(async move {
                let (of, about) = (session.clone(), Claim { token: Some(grant.token), ..Claim::default() });
                session.owe(move || all_entries(of.clone(), grant.clone(), about.clone())).await;
            });
        }
    }

    /// Releases what an acquire has, or may have.
    async fn withdraw(self: Arc<Self>, key: String, id: String, departure: Departure) {
        let session = self.clone();
        let release = move || {
            let (session, key) = (session.clone(), key.clone());
            let path = lock_path(&key, &query_of(&[("request_id", id.clone())]));
            async move {
                session.text(Call { method: "DELETE", path, timeout: Some(WITHDRAW_TIMEOUT), about: Subject::key(&key), ..Call::default() }).await.map(drop)
            }
        };
        let first = release().await;
        drop(departure);
        if first.is_err_and(|e| e.may_be_done()) {
            self.owe(release).await;
        }
    }

    /// Repeats a release without an answer until it has one or the session is over. The lock may be held, and nobody may have its handle any more.
    pub async fn owe<F, R>(&self, release: F)
    where
        F: Fn() -> R,
        R: Future<Output = Result<()>>,
    {
        let mut patience = Patience::new(if self.id.is_some() { None } else { Some(OWE_TIME) });
        let repeat = async {
            while patience.pause().await && !self.is_over() {
                if !release().await.is_err_and(|e| e.may_be_done()) {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = repeat => {}
            _ = self.life.wait() => {}
            _ = self.core.transport.life.wait() => {}
        }
    }

    /// PATCH: it checks, and changes what the body names.
    pub async fn amend(&self, key: &str, body: &Amend, timeout: Option<Duration>) -> Result<WireGrant> {
        let needs = [(body.ttl_ms.is_some(), "bind_ttl"), (body.data.is_some(), "data"), (body.mode.is_some(), "shared")];
        lacking(&self.about, &needs.iter().filter_map(|(is, feature)| is.then_some(*feature)).collect::<Vec<_>>())?;
        self.answer(Call {
            method: "PATCH",
            path: lock_path(key, ""),
            body: Some(json(body)?),
            about: Subject { key: key.to_owned(), token: Some(body.token) },
            timeout,
            repeatable: true,
            ..Call::default()
        })
        .await
    }

    /// Releases a lock by its token.
    pub async fn release(&self, key: &str, body: &Claim, headers: Headers) -> Result<Released> {
        #[derive(Deserialize)]
        struct Answer {
            released: bool,
            #[serde(default)]
            reentry: Option<u32>,
            #[serde(default)]
            held_ms: Option<i64>,
        }
        let needs = [(body.outcome.is_some(), "outcome"), (body.reentry.is_some(), "reentrant")];
        lacking(&self.about, &needs.iter().filter_map(|(is, feature)| is.then_some(*feature)).collect::<Vec<_>>())?;
        let about = Subject { key: key.to_owned(), token: body.token };
        let answer: Answer =
            self.answer(Call { method: "POST", path: lock_path(key, "/release"), body: Some(json(body)?), about, headers, ..Call::default() }).await?;
        if let (true, Some(token)) = (answer.released, body.token) {
            let grant = crate::lock(&self.state).grants.remove(&(key.to_owned(), token));
            if let Some(grant) = grant {
                grant.end();
            }
        }
        Ok(Released { free: answer.released, reentry: answer.reentry.unwrap_or(0), held: ms(answer.held_ms.unwrap_or(0)) })
    }

    /// Takes over what the error of a call says about a lock.
    pub fn note(&self, grant: &Arc<Grant>, e: Error) -> Error {
        match &e {
            Error::LockLost(p) => {
                self.drop_grant(grant);
                grant.lose(&p.reason, "")
            }
            Error::SessionEnded(_) if grant.lease.is_some() => {
                self.end();
                grant.loss().unwrap_or(e)
            }
            _ => e,
        }
    }

    /// Forgets a lock that was released.
    pub fn released(&self, grant: &Arc<Grant>) {
        grant.end();
        self.drop_grant(grant);
    }
}

/// Releases each entry of a grant's owner.
async fn all_entries(session: Arc<Session>, grant: Arc<Grant>, claim: Claim) -> Result<()> {
    while !session.release(&grant.key, &claim, Headers::new()).await?.free {}
    Ok(())
}

/// An acquire that has no answer yet. At the end of the last one, early news is of no use.
struct Due<'a>(&'a Session);

impl Due<'_> {
    fn new(session: &Session) -> Due<'_> {
        crate::lock(&session.state).due += 1;
        Due(session)
    }
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        let mut state = crate::lock(&self.0.state);
        state.due -= 1;
        if state.due == 0 {
            state.early.clear();
        }
    }
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| ours("invalid_request", "", format!("the data or the result cannot be made into JSON: {e}")).because(e))
}

/// The body of PATCH.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Amend {
    pub token: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

/// The body of a release.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Claim {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reentry: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

impl Claim {
    pub fn new(token: i64, entry: Option<String>, options: Release) -> Result<Claim> {
        match options.wrong {
            Some(wrong) => Err(wrong),
            None => Ok(Claim { token: Some(token), request_id: entry, outcome: options.outcome, reentry: options.reentry, result: options.result }),
        }
    }
}

/// What a grant tells one of its entries.
pub(crate) struct Entry {
    pub lost: Latch<Error>,
    pub on_stop: Option<OnStop>,
}

impl Entry {
    fn ask(&self, request: &Stopping) {
        if let Some(on_stop) = &self.on_stop {
            // A panic of the app must not end the session. The hook for panics has reported it.
            let _ = catch_unwind(AssertUnwindSafe(|| on_stop(request.clone())));
        }
    }
}

/// One grant of one key. All entries of its owner share it. Its end comes from the session's stream, from the answer of a call, or from the clock.
pub(crate) struct Grant {
    pub key: String,
    pub token: i64,
    /// `None`: it does not belong to the session.
    lease: Option<i64>,
    /// Set by the first request to stop.
    pub stopped: Latch<()>,
    /// Held while entries are told of requests to stop, so that these come in order.
    telling: Mutex<()>,
    state: Mutex<GrantState>,
}

#[derive(Default)]
struct GrantState {
    lost: Option<Error>,
    stopping: Option<Stopping>,
    /// Requests to stop that came before the first entry.
    early: Vec<Stopping>,
    entries: Vec<Weak<Entry>>,
    expiry: Option<AbortHandle>,
    /// When the question was sent whose answer set the expiry.
    asked: Option<Instant>,
    /// It was released.
    over: bool,
}

impl Grant {
    fn new(id: &GrantId, lease: Option<i64>) -> Arc<Grant> {
        Arc::new(Grant { key: id.0.clone(), token: id.1, lease, stopped: Latch::new(), telling: Mutex::new(()), state: Mutex::default() })
    }

    /// Adds an entry. The first one also gets the news from before.
    pub fn enter(&self, entry: &Arc<Entry>) {
        let _telling = crate::lock(&self.telling);
        let (early, lost) = {
            let mut state = crate::lock(&self.state);
            state.entries.push(Arc::downgrade(entry));
            (std::mem::take(&mut state.early), state.lost.clone())
        };
        for request in early {
            entry.ask(&request);
        }
        if let Some(lost) = lost {
            entry.lost.set(lost);
        }
    }

    /// Removes an entry.
    pub fn leave(&self, entry: &Arc<Entry>) {
        crate::lock(&self.state).entries.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(entry)));
    }

    /// Notes that the lock was released.
    fn end(&self) {
        let mut state = crate::lock(&self.state);
        state.over = true;
        state.entries.clear();
        if let Some(expiry) = state.expiry.take() {
            expiry.abort();
        }
    }

    /// Notes a loss, and returns the first one that was noted.
    fn lose(&self, reason: &str, more: &str) -> Error {
        let (lost, entries) = {
            let mut state = crate::lock(&self.state);
            if let Some(lost) = &state.lost {
                return lost.clone();
            }
            let lost = lost(&self.key, self.token, reason, more);
            state.lost = Some(lost.clone());
            if let Some(expiry) = state.expiry.take() {
                expiry.abort();
            }
            let entries = if state.over { Vec::new() } else { state.entries.clone() };
            (lost, entries)
        };
        for entry in entries.iter().filter_map(Weak::upgrade) {
            entry.lost.set(lost.clone());
        }
        lost
    }

    pub fn loss(&self) -> Option<Error> {
        crate::lock(&self.state).lost.clone()
    }

    pub fn stopping(&self) -> Option<Stopping> {
        crate::lock(&self.state).stopping.clone()
    }

    fn hear(&self, news: News) {
        match news {
            News::Lost(reason) => drop(self.lose(&reason, "")),
            News::Stop(request) => self.ask_to_stop(request),
        }
    }

    /// Notes a request to stop, and tells the entries.
    fn ask_to_stop(&self, request: Stopping) {
        let _telling = crate::lock(&self.telling);
        self.note(Some(request.clone()));
        let entries = {
            let mut state = crate::lock(&self.state);
            if state.entries.is_empty() {
                state.early.push(request.clone());
            }
            state.entries.clone()
        };
        for entry in entries.iter().filter_map(Weak::upgrade) {
            entry.ask(&request);
        }
    }

    /// Takes a request to stop over.
    pub fn note(&self, request: Option<Stopping>) {
        if let Some(request) = request {
            crate::lock(&self.state).stopping = Some(request);
            self.stopped.set(());
        }
    }

    /// Sets the end of a lock without a session, by the clock here. The answer to an older question sets nothing.
    pub fn expire(self: &Arc<Self>, core: &Core, asked: Instant, until: Instant) {
        let mut state = crate::lock(&self.state);
        if state.over || state.asked.is_some_and(|before| asked < before) {
            return;
        }
        state.asked = Some(asked);
        if let Some(expiry) = state.expiry.take() {
            expiry.abort();
        }
        let grant = Arc::downgrade(self);
        state.expiry = core.spawn_abortable(async move {
            tokio::time::sleep_until(until.into()).await;
            if let Some(grant) = grant.upgrade() {
                {
                    let mut state = crate::lock(&grant.state);
                    if state.asked != Some(asked) {
                        return; // it was set anew in this moment
                    }
                    state.expiry = None;
                }
                grant.lose("expired", "");
            }
        });
    }
}
