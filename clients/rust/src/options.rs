use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::error::{invalid, ours, Result};
use crate::types::{to_ms, Bind, Description, Mode, Outcome, Scope, Stopping};

/// What is called for each request to stop.
pub(crate) type OnStop = Arc<dyn Fn(Stopping) + Send + Sync>;

/// The options of an acquire.
///
/// ```
/// use std::time::Duration;
/// use locksidecar::Options;
///
/// let options = Options::new().wait(Duration::from_secs(5)).data("web-1");
/// ```
#[derive(Clone, Default)]
pub struct Options {
    pub(crate) wait: Option<Duration>,
    pub(crate) body: AcquireBody,
    pub(crate) named: bool,
    pub(crate) traceparent: Option<(String, String)>,
    pub(crate) on_stop: Option<OnStop>,
    wrong: Option<crate::Error>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("wait", &self.wait).finish_non_exhaustive()
    }
}

/// The body of an acquire.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct AcquireBody {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    pub wait_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<Bind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub reentrant: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_hold_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_hold_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_success: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl Options {
    /// The defaults: an exclusive lock, and a wait until the caller leaves.
    pub fn new() -> Options {
        Options::default()
    }

    /// Limits the wait in the queue. With [`Duration::ZERO`] the call does not wait. Without this option it waits until its future is dropped.
    pub fn wait(mut self, most: Duration) -> Options {
        self.wait = Some(most);
        self
    }

    /// How long the lock outlives a dead sidecar (less than twice that); a living one renews it. With [`Options::bind_to_ttl`], how long it lasts.
    pub fn ttl(mut self, ttl: Duration) -> Options {
        self.body.ttl_ms = Some(to_ms(ttl));
        self
    }

    /// The lock outlives the process, and a guard that is dropped: it ends after its [`Options::ttl`], or with a release by key and token, which
    /// anybody can guess. Extend it before its end to hold it for longer.
    pub fn bind_to_ttl(mut self) -> Options {
        self.body.bind = Some(Bind::Ttl);
        self
    }

    /// Shared holders do not exclude each other.
    pub fn shared(mut self) -> Options {
        self.body.mode = Some(Mode::Shared);
        self
    }

    /// The most shared holders at a time, 1 to 1000, with [`Options::shared`]: see [`crate::Client::semaphore`]. All callers of the key name the same.
    pub fn limit(mut self, most: u32) -> Options {
        self.body.limit = Some(most);
        self
    }

    /// A part of the session, such as a job, which others see. Calls with another owner wait.
    pub fn owner(mut self, name: impl Into<String>) -> Options {
        let name = name.into();
        if name.is_empty() {
            self.fail(invalid("owner: it is 1 to 255 bytes of UTF-8"));
        }
        self.body.owner = Some(name);
        self
    }

    /// Code under the lock may enter it again, and each entry has its release. Both calls need the option. [`Options::owner`] names who enters; by
    /// default it is the code in the outermost reentrant [`crate::Client::lock`].
    pub fn reentrant(mut self) -> Options {
        self.body.reentrant = true;
        self
    }

    /// After this time the sidecar releases the lock, which is a loss.
    pub fn max_hold(mut self, most: Duration) -> Options {
        self.body.max_hold_ms = Some(to_ms(most));
        self
    }

    /// Nobody else gets the lock before, even if it is released or the process dies.
    pub fn min_hold(mut self, least: Duration) -> Options {
        self.body.min_hold_ms = Some(to_ms(least));
        self
    }

    /// Shown to others as part of the holder: anything that JSON can carry in 4 KiB.
    pub fn data(mut self, value: impl Serialize) -> Options {
        match serde_json::to_value(value) {
            Ok(value) => self.body.data = Some(value),
            Err(e) => self.fail(invalid(format!("data: it cannot be made into JSON: {e}"))),
        }
        self
    }

    /// If the holder releases with [`Outcome::Success`] while this call waits, it gets [`crate::Error::Skipped`] with the result instead of the lock.
    pub fn skip_if_done(mut self) -> Options {
        self.body.on_success = Some("skip");
        self
    }

    /// A UUID of your own: the same id gets the same grant. If such a call is dropped, its grant stays: ask again with it.
    pub fn request_id(mut self, uuid: impl Into<String>) -> Options {
        self.body.request_id = uuid.into();
        self.named = true;
        if self.body.request_id.is_empty() {
            self.fail(invalid("request_id: it is empty; it must be a UUID"));
        }
        self
    }

    /// Called for each request to stop, one after another, in the client's thread. It must not block.
    pub fn on_stop(mut self, f: impl Fn(Stopping) + Send + Sync + 'static) -> Options {
        self.on_stop = Some(Arc::new(f));
        self
    }

    /// The W3C headers `traceparent` and `tracestate` (empty: none) of the acquire and its release, for apps without OpenTelemetry.
    pub fn traceparent(mut self, traceparent: impl Into<String>, tracestate: impl Into<String>) -> Options {
        self.traceparent = Some((traceparent.into(), tracestate.into()));
        self
    }

    fn fail(&mut self, wrong: crate::Error) {
        self.wrong.get_or_insert(wrong);
    }

    /// The options with a request id and the wait in the body.
    pub(crate) fn checked(mut self) -> Result<Options> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        if !self.named {
            self.body.request_id = uuid::Uuid::new_v4().to_string();
        }
        self.body.wait_ms = self.wait.map_or(-1, to_ms);
        Ok(self)
    }
}

impl AcquireBody {
    /// The features without which a sidecar would not understand the call.
    pub fn needs(&self) -> Vec<&'static str> {
        [
            (self.wait_ms != 0, "wait"),
            (self.bind == Some(Bind::Ttl), "bind_ttl"),
            (self.data.is_some(), "data"),
            (self.owner.is_some() || self.reentrant, "reentrant"),
            (self.max_hold_ms.is_some() || self.min_hold_ms.is_some(), "hold"),
            (self.on_success.is_some(), "outcome"),
            (self.mode == Some(Mode::Shared), "shared"),
            (!self.keys.is_empty(), "several_keys"),
        ]
        .into_iter()
        .filter_map(|(is, feature)| is.then_some(feature))
        .collect()
    }
}

/// The error of a sidecar that lacks one of the features.
pub(crate) fn lacking(about: &Description, features: &[&str]) -> Result<()> {
    match features.iter().find(|feature| !about.has(feature)) {
        Some(feature) => Err(ours("unsupported", "", format!("the sidecar ({}) is older than this client: it lacks {feature:?}", about.version)).into()),
        None => Ok(()),
    }
}

/// The options of a release.
#[derive(Clone, Debug, Default)]
pub struct Release {
    pub(crate) outcome: Option<Outcome>,
    pub(crate) result: Option<Value>,
    pub(crate) reentry: Option<u32>,
    pub(crate) wrong: Option<crate::Error>,
}

impl Release {
    /// A release without more.
    pub fn new() -> Release {
        Release::default()
    }

    /// What became of the work: waiting calls with [`Options::skip_if_done`], and watchers, learn it.
    pub fn outcome(mut self, outcome: Outcome) -> Release {
        self.outcome = Some(outcome);
        self
    }

    /// JSON of at most 4 KiB for them. The outcome is [`Outcome::Success`].
    pub fn result(mut self, value: impl Serialize) -> Release {
        match serde_json::to_value(value) {
            Ok(value) => self.result = Some(value),
            Err(e) => self.wrong = Some(invalid(format!("result: it cannot be made into JSON: {e}"))),
        }
        self.outcome = Some(Outcome::Success);
        self
    }

    /// Refuses the release unless the lock has this number of entries.
    pub fn reentry(mut self, count: u32) -> Release {
        self.reentry = Some(count);
        self
    }
}

/// Chooses locks or waiting calls of a list.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub(crate) scope: Option<Scope>,
    pub(crate) prefix: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) page_size: Option<u32>,
}

impl Query {
    /// All of them.
    pub fn new() -> Query {
        Query::default()
    }

    /// Which locks. Default: [`Scope::All`].
    pub fn scope(mut self, scope: Scope) -> Query {
        self.scope = Some(scope);
        self
    }

    /// What the keys begin with.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Query {
        self.prefix = Some(prefix.into());
        self
    }

    /// What is before the first colon of the keys; only of locks.
    pub fn kind(mut self, kind: impl Into<String>) -> Query {
        self.kind = Some(kind.into());
        self
    }

    /// The most items of one answer, up to 1000. Default: 100.
    pub fn page_size(mut self, most: u32) -> Query {
        self.page_size = Some(most);
        self
    }

    pub(crate) fn values(&self) -> Vec<(&'static str, String)> {
        let scope = self.scope.map(|scope| match scope {
            Scope::All => "all".to_owned(),
            Scope::Pod => "pod".to_owned(),
            Scope::Session => "session".to_owned(),
        });
        [("scope", scope), ("prefix", self.prefix.clone()), ("type", self.kind.clone()), ("limit", self.page_size.map(|n| n.to_string()))]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}
