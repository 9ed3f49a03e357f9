use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// How a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Mode {
    /// By one holder.
    Exclusive,
    /// By several, who do not exclude each other.
    Shared,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

/// What ends a lock without a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Bind {
    /// The end of the client's session.
    Session,
    /// Its time.
    Ttl,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

/// What a release says about the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Outcome {
    /// The work is done.
    Success,
    /// The work has failed.
    Failure,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Which locks are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// All locks of the namespace.
    All,
    /// Those that this sidecar has granted.
    Pod,
    /// Those of this client's session.
    Session,
}

pub(crate) fn ms(n: i64) -> Duration {
    Duration::from_millis(n.max(0) as u64)
}

/// Milliseconds, rounded up, because 0 means "not at all".
pub(crate) fn to_ms(d: Duration) -> i64 {
    i64::try_from(d.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

fn from_ms<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    Ok(ms(Option::<i64>::deserialize(d)?.unwrap_or(0)))
}

fn from_time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<SystemTime>, D::Error> {
    Ok(Option::<String>::deserialize(d)?.and_then(|text| humantime::parse_rfc3339(&text).ok()))
}

/// A member that is null is as one that is missing.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// Who holds a lock.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Holder {
    /// The holder's sidecar: its pod, a random part, and after the last `@` its version.
    #[serde(default, deserialize_with = "or_default")]
    pub instance: String,
    /// The pod of the sidecar.
    #[serde(default, deserialize_with = "or_default")]
    pub pod: String,
    /// The public name of the session. A lock of `Options::bind_to_ttl` has none.
    #[serde(default)]
    pub session: Option<String>,
    /// The part of the session that holds the lock, if it was named.
    #[serde(default)]
    pub owner: Option<String>,
    /// By the clock of the store, and informative.
    #[serde(default, deserialize_with = "from_time")]
    pub acquired_at: Option<SystemTime>,
    /// For how long it has held the lock.
    #[serde(default, rename = "held_ms", deserialize_with = "from_ms")]
    pub held: Duration,
    /// When the lock ends without a release or a renewal.
    #[serde(default, rename = "expires_in_ms", deserialize_with = "from_ms")]
    pub expires_in: Duration,
    /// What the holder has given; null without.
    #[serde(default)]
    pub data: Value,
    /// The W3C trace context of the call that acquired the lock.
    #[serde(default)]
    pub traceparent: Option<String>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {:?}", self.pod)?;
        if let Some(session) = &self.session {
            write!(f, ", session {session:?}")?;
        }
        if let Some(owner) = &self.owner {
            write!(f, ", owner {owner:?}")?;
        }
        write!(f, ", for {:?}", self.held)
    }
}

/// One of several holders.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct SharedHolder {
    /// Who it is.
    #[serde(flatten)]
    pub holder: Holder,
    /// Its token.
    pub token: i64,
    /// A number that no other holder has; `None` without a limit.
    #[serde(default)]
    pub slot: Option<u32>,
    /// The request to stop.
    #[serde(default)]
    pub stopping: Option<Stopping>,
}

/// A request to the holder to finish, and to release the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Stopping {
    /// For people.
    #[serde(default)]
    pub reason: Option<String>,
    /// By the clock of the store. The session's stream does not tell it.
    #[serde(default, deserialize_with = "from_time")]
    pub requested_at: Option<SystemTime>,
}

/// What is known of a lock, free or held.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its key.
    pub key: String,
    /// The part of the key before its first colon.
    #[serde(default, rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    /// Whether somebody holds it.
    #[serde(default, rename = "state", deserialize_with = "is_held")]
    pub held: bool,
    /// The session of this client holds it.
    #[serde(default, deserialize_with = "or_default")]
    pub mine: bool,
    /// The fencing token, if it is mine.
    #[serde(default)]
    pub token: Option<i64>,
    /// How it is held; `None` if it is free.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// The most shared holders at a time.
    #[serde(default)]
    pub limit: Option<u32>,
    /// The number of holders.
    #[serde(default, deserialize_with = "or_default")]
    pub holders_count: u64,
    /// The exclusive holder, or the shared one with the oldest grant; `None` if it is free.
    #[serde(default)]
    pub holder: Option<Holder>,
    /// The sidecar of the holder may keep the lock for its next session, so perhaps no session has it now.
    #[serde(default, deserialize_with = "or_default")]
    pub kept: bool,
    /// The shared holders in the order of their tokens, the first 100.
    #[serde(default, deserialize_with = "or_default")]
    pub holders: Vec<SharedHolder>,
    /// The number of waiting calls.
    #[serde(default, deserialize_with = "or_default")]
    pub queue_length: u64,
    /// The sidecar has not asked the store.
    #[serde(default, deserialize_with = "or_default")]
    pub cached: bool,
    /// The request to stop.
    #[serde(default)]
    pub stopping: Option<Stopping>,
    /// The API's answer, with members that this version does not know.
    #[serde(skip)]
    pub raw: Value,
}

fn is_held<'de, D: Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    Ok(String::deserialize(d)? == "held")
}

/// A call that waits.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[non_exhaustive]
pub struct Waiter {
    /// The key that it waits for.
    pub key: String,
    /// 1 for the next one.
    #[serde(default, deserialize_with = "or_default")]
    pub position: u64,
    /// The pod of its sidecar.
    #[serde(default, deserialize_with = "or_default")]
    pub pod: String,
    /// The public name of its session.
    #[serde(default)]
    pub session: Option<String>,
    /// The part of the session, if it was named.
    #[serde(default)]
    pub owner: Option<String>,
    /// How it wants to hold the lock.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// The most shared holders at a time.
    #[serde(default)]
    pub limit: Option<u32>,
    /// For how long it has waited.
    #[serde(default, rename = "waiting_ms", deserialize_with = "from_ms")]
    pub waiting: Duration,
    /// The W3C trace context of the call.
    #[serde(default)]
    pub traceparent: Option<String>,
    /// The API's answer.
    #[serde(skip)]
    pub raw: Value,
}

/// A type that is read from an answer, and keeps it.
pub(crate) trait FromAnswer: Sized {
    fn from_answer(raw: Value) -> serde_json::Result<Self>;
}

impl FromAnswer for LockInfo {
    fn from_answer(raw: Value) -> serde_json::Result<LockInfo> {
        Ok(LockInfo { raw: raw.clone(), ..serde_json::from_value(raw)? })
    }
}

impl FromAnswer for Waiter {
    fn from_answer(raw: Value) -> serde_json::Result<Waiter> {
        Ok(Waiter { raw: raw.clone(), ..serde_json::from_value(raw)? })
    }
}

/// What a sidecar says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Description {
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// The version of the API.
    #[serde(default)]
    pub api: String,
    /// The namespace of its keys.
    #[serde(default)]
    pub namespace: String,
    /// What it can do.
    #[serde(default)]
    pub features: Vec<String>,
}

impl Description {
    /// Whether the sidecar has a feature.
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|name| name == feature)
    }
}

/// What happened to a key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// `state`, `acquired`, `released`, `expired` or `stopping`.
    pub kind: String,
    /// The key.
    pub key: String,
    /// The lock as it is; only of `state`.
    pub lock: Option<LockInfo>,
    /// The token of the grant.
    pub token: Option<i64>,
    /// Of `acquired`, if it is known.
    pub mode: Option<Mode>,
    /// Of `acquired`, if it is known.
    pub limit: Option<u32>,
    /// Of `acquired`, if it is known.
    pub slot: Option<u32>,
    /// Of `acquired`, if it is known.
    pub holder: Option<Holder>,
    /// Of a release, if it had one.
    pub outcome: Option<Outcome>,
    /// Of a release; null if it had none.
    pub result: Value,
    /// The request of `stopping`.
    pub stopping: Option<Stopping>,
    /// The data as the API sent it.
    pub raw: Value,
}

#[derive(Deserialize)]
struct WireEvent {
    key: String,
    #[serde(default)]
    token: Option<i64>,
    #[serde(default)]
    mode: Option<Mode>,
    #[serde(default)]
    limit: Option<u32>,
    #[serde(default)]
    slot: Option<u32>,
    #[serde(default)]
    holder: Option<Holder>,
    #[serde(default)]
    outcome: Option<Outcome>,
    #[serde(default)]
    result: Value,
}

impl Event {
    pub(crate) fn read(name: &str, data: &[u8]) -> serde_json::Result<Event> {
        let raw: Value = serde_json::from_slice(data)?;
        let w: WireEvent = serde_json::from_value(raw.clone())?;
        let mut event = Event {
            kind: name.to_owned(),
            key: w.key,
            lock: None,
            token: w.token,
            mode: w.mode,
            limit: w.limit,
            slot: w.slot,
            holder: w.holder,
            outcome: w.outcome,
            result: w.result,
            stopping: None,
            raw: raw.clone(),
        };
        match name {
            "state" => event.lock = Some(LockInfo::from_answer(raw)?),
            "stopping" => event.stopping = Some(serde_json::from_value(raw)?),
            _ => {}
        }
        Ok(event)
    }
}

/// The state of a held lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Its key.
    pub key: String,
    /// Its fencing token.
    pub token: i64,
    /// The number of its owner's entries.
    pub reentry: u32,
    /// How long an app may rely on the lock without news from the sidecar.
    pub expires_in: Duration,
    /// How it is held.
    pub mode: Mode,
    /// The most shared holders at a time.
    pub limit: Option<u32>,
    /// A number that no other holder has.
    pub slot: Option<u32>,
    /// The request to stop.
    pub stopping: Option<Stopping>,
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Released {
    /// False while entries of the owner remain.
    pub free: bool,
    /// The number of remaining entries.
    pub reentry: u32,
    /// For how long the lock was held.
    pub held: Duration,
}

/// A grant, as the API answers it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct WireGrant {
    #[serde(default)]
    pub granted: bool,
    pub key: String,
    #[serde(default, deserialize_with = "or_default")]
    pub token: i64,
    #[serde(default)]
    pub session: Option<String>,
    #[serde(default)]
    pub bind: Option<Bind>,
    #[serde(default, deserialize_with = "or_default")]
    pub reentry: u32,
    #[serde(default, deserialize_with = "or_default")]
    pub expires_in_ms: i64,
    #[serde(default, deserialize_with = "or_default")]
    pub waited_ms: i64,
    #[serde(default, deserialize_with = "from_time")]
    pub acquired_at: Option<SystemTime>,
    #[serde(default)]
    pub mode: Option<Mode>,
    #[serde(default)]
    pub limit: Option<u32>,
    #[serde(default)]
    pub slot: Option<u32>,
    #[serde(default)]
    pub stopping: Option<Stopping>,
    /// Of an acquire that was skipped.
    #[serde(default)]
    pub result: Value,
}

impl From<WireGrant> for Status {
    fn from(w: WireGrant) -> Status {
        Status {
            key: w.key,
            token: w.token,
            reentry: w.reentry,
            expires_in: ms(w.expires_in_ms),
            mode: w.mode.unwrap_or(Mode::Exclusive),
            limit: w.limit,
            slot: w.slot,
            stopping: w.stopping,
        }
    }
}
