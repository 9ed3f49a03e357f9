use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::types::{ms, Holder, Mode};

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is known of an error, whatever its kind.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Problem {
    /// The stable code: of the [API](https://github.com/locksidecar/locksidecar/blob/main/docs/errors.md), or of the client: `unreachable`,
    /// `connection_lost`, `timeout`, `bad_answer`, `skipped`, `unsupported`.
    pub code: String,
    /// The HTTP status; `None` without an answer.
    pub status: Option<u16>,
    /// For people.
    pub detail: String,
    /// The key of the call, or the first of several keys that was not granted. It may be empty.
    pub key: String,
    /// The token of a lock that was lost.
    pub token: Option<i64>,
    /// More about some codes: why a lock was lost (`expired`, `forced`, `max_hold`, `store_lost`, `shutdown`, `disconnected`, `closed`), why a token is
    /// not the holder's (`other_session`, `released`, `unknown_token`), that the client was closed (`closed`), or that the store has its quiet time
    /// (`quiet`). It may be empty.
    pub reason: String,
    /// Who holds the lock; `None` if it has just become free.
    pub holder: Option<Holder>,
    /// The mode of the holders.
    pub mode: Option<Mode>,
    /// The most shared holders at a time.
    pub limit: Option<u32>,
    /// The number of holders.
    pub holders_count: u64,
    /// The holder's sidecar may keep the lock for its next session, so perhaps nobody holds it now.
    pub kept: bool,
    /// The answer is from the sidecar's memory.
    pub cached: bool,
    /// The number of waiting calls.
    pub queue_length: u64,
    /// The last place of this call in the queue.
    pub queue_position: Option<u64>,
    /// How long the call has waited.
    pub waited: Duration,
    /// The number of entries, if a release named another one.
    pub reentry: u32,
    /// When another try makes sense.
    pub retry_after: Option<Duration>,
    /// The rest of the store's quiet time after a failover, in which nothing is granted.
    pub quiet: Duration,
    /// The result of the holder which has done the work; only of [`Error::Skipped`].
    pub result: Value,
    /// The problem as the API sent it; `null` without one.
    pub raw: Value,
    cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $($code:literal)|*;)*) => {
        /// An error of the sidecar or of the client. [`Error::problem`] has its stable code and more; [`std::error::Error::source`] the cause if there was
        /// no answer.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Error {
            $($(#[$doc])* $name(Box<Problem>),)*
            /// A code that this version does not know.
            Other(Box<Problem>),
        }

        impl From<Problem> for Error {
            fn from(problem: Problem) -> Error {
                match problem.code.as_str() {
                    $($($code)|* => Error::$name(Box::new(problem)),)*
                    _ => Error::Other(Box::new(problem)),
                }
            }
        }

        impl Error {
            /// What is known of the error.
            pub fn problem(&self) -> &Problem {
                match self {
                    $(Error::$name(problem))|* | Error::Other(problem) => problem,
                }
            }
        }
    };
}

kinds! {
    /// Another caller holds the lock, and the call did not wait.
    LockHeld: "held";
    /// The wait ended without the lock.
    WaitTimeout: "wait_timeout";
    /// The lock was held under this token, and is lost. Stop the work under it.
    LockLost: "lock_lost";
    /// The holder has done the work, and the call wanted only the result: `Options::skip_if_done`. It is no failure.
    Skipped: "skipped";
    /// The sidecar or the store has a limit of sessions, locks, waiting calls or connections.
    LimitReached: "limit";
    /// The holders of a semaphore name another limit.
    LimitMismatch: "limit_mismatch";
    /// The sidecar does not answer or stops, or its store is away. The outcome may be unknown.
    Unavailable: "unreachable" | "connection_lost" | "timeout" | "store_unavailable" | "draining";
    /// The sidecar is older than what was asked for, or may not do it. Nothing was done.
    Unsupported: "unsupported";
    /// The token does not hold the key. Nothing has changed.
    NotHolder: "not_holder";
    /// Nobody holds the lock.
    NotHeld: "not_held";
    /// The session of the call is over. With the reason `closed`: by `Client::close`, or because the client was dropped.
    SessionEnded: "session_ended";
    /// An argument or a setting is wrong.
    InvalidRequest: "invalid_request";
    /// The data or the call is too large.
    TooLarge: "too_large" | "head_too_large";
    /// The sidecar does not allow this. Also a call over TCP without a right token (`unauthorized`).
    Forbidden: "forbidden" | "unauthorized";
    /// Something else than a locksidecar answers.
    BadAnswer: "bad_answer";
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &str {
        &self.problem().code
    }

    /// The reason; it may be empty.
    pub fn reason(&self) -> &str {
        &self.problem().reason
    }

    /// Another caller has the lock: [`Error::LockHeld`] or [`Error::WaitTimeout`].
    pub fn is_held(&self) -> bool {
        matches!(self, Error::LockHeld(_) | Error::WaitTimeout(_))
    }

    /// The client is closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, Error::SessionEnded(p) if p.reason == "closed")
    }

    pub(crate) fn is_code(&self, codes: &[&str]) -> bool {
        codes.contains(&self.code())
    }

    /// The outcome of the call is unknown. Without a connection, nothing was sent.
    pub(crate) fn has_no_answer(&self) -> bool {
        self.is_code(&["connection_lost", "timeout", "bad_answer"])
    }

    /// The outcome of a release is unknown, or it may succeed later.
    pub(crate) fn may_be_done(&self) -> bool {
        self.has_no_answer() || self.is_code(&["unreachable", "limit", "store_unavailable", "draining", "request_timeout", "internal"])
    }

    /// The sidecar is not there, stops, or was restarted.
    pub(crate) fn is_away(&self) -> bool {
        self.is_code(&["unreachable", "connection_lost", "session_ended", "draining"])
    }

    /// The connection or the session of the call has ended.
    pub(crate) fn broke_off(&self) -> bool {
        self.is_code(&["connection_lost", "session_ended"]) && !self.is_closed()
    }
}

impl fmt::Display for Error {
    /// One printable line, whatever others have put into it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = self.problem();
        if !p.key.is_empty() && !p.detail.contains(&format!("{:?}", p.key)) {
            write!(f, "{:?}: ", p.key)?;
        }
        let detail = if p.detail.is_empty() { &p.code } else { &p.detail };
        f.write_str(&printable(detail))?;
        if let (Some(holder), true) = (&p.holder, p.reason != "quiet") {
            write!(f, "; the holder is {holder}")?;
        }
        if let Some(position) = p.queue_position {
            write!(f, "; queue position {position}")?;
        }
        Ok(())
    }
}

/// The text in one line, with control characters escaped.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::new();
    for (i, word) in text.split_whitespace().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        for c in word.chars() {
            if matches!(c, '"' | '\'' | '\\') {
                out.push(c);
            } else {
                out.extend(c.escape_debug());
            }
        }
    }
    out
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.problem().cause.as_ref().map(|cause| &**cause as &(dyn std::error::Error + 'static))
    }
}

/// What a call is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    pub key: String,
    pub token: Option<i64>,
}

impl Subject {
    pub fn key(key: &str) -> Subject {
        Subject { key: key.to_owned(), token: None }
    }
}

/// An error of the client itself.
pub(crate) fn ours(code: &str, key: &str, detail: impl Into<String>) -> Problem {
    Problem { code: code.to_owned(), key: key.to_owned(), detail: detail.into(), ..Problem::default() }
}

impl Problem {
    pub(crate) fn because(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.cause = Some(Arc::new(cause));
        self.into()
    }
}

pub(crate) fn invalid(detail: impl Into<String>) -> Error {
    ours("invalid_request", "", detail).into()
}

pub(crate) fn closed() -> Error {
    Problem { reason: "closed".to_owned(), ..ours("session_ended", "", "this client is closed; make another one") }.into()
}

pub(crate) fn session_ended() -> Error {
    ours("session_ended", "", "the session has ended, because its connection to the sidecar is closed").into()
}

pub(crate) fn lost(key: &str, token: i64, reason: &str, more: &str) -> Error {
    let mut detail = format!("lock {key:?} (token {token}) is lost: {reason}");
    if !more.is_empty() {
        detail = format!("{detail}; {more}");
    }
    Problem { token: Some(token), reason: reason.to_owned(), ..ours("lock_lost", key, detail) }.into()
}

/// `application/problem+json`.
#[derive(Deserialize)]
struct Wire {
    code: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    mode: Option<Mode>,
    #[serde(default)]
    limit: Option<u32>,
    #[serde(default)]
    holders_count: Option<u64>,
    #[serde(default)]
    holder: Option<Holder>,
    #[serde(default)]
    kept: Option<bool>,
    #[serde(default)]
    cached: Option<bool>,
    #[serde(default)]
    queue_length: Option<u64>,
    #[serde(default)]
    queue_position: Option<u64>,
    #[serde(default)]
    waited_ms: Option<i64>,
    #[serde(default)]
    quiet_ms: Option<i64>,
    #[serde(default)]
    reentry: Option<u32>,
}

/// The error of an answer with the status of a failure.
pub(crate) fn of_answer(status: u16, body: &[u8], retry_after: Option<Duration>, about: &Subject) -> Error {
    let raw: Value = serde_json::from_slice(body).unwrap_or_default();
    let Ok(w) = serde_json::from_value::<Wire>(raw.clone()) else {
        let start: String = String::from_utf8_lossy(body).chars().take(200).collect();
        let detail = format!("this is no answer of a sidecar: status {status}, {start:?}");
        return Problem { status: Some(status), ..ours("bad_answer", &about.key, detail) }.into();
    };
    Problem {
        token: about.token.filter(|_| w.code == "lock_lost"),
        code: w.code,
        status: Some(status),
        detail: w.detail,
        key: w.key.filter(|key| !key.is_empty()).unwrap_or_else(|| about.key.clone()),
        reason: w.reason.unwrap_or_default(),
        holder: w.holder,
        mode: w.mode,
        limit: w.limit,
        holders_count: w.holders_count.unwrap_or(0),
        kept: w.kept.unwrap_or(false),
        cached: w.cached.unwrap_or(false),
        queue_length: w.queue_length.unwrap_or(0),
        queue_position: w.queue_position.filter(|&n| n > 0),
        waited: ms(w.waited_ms.unwrap_or(0)),
        reentry: w.reentry.unwrap_or(0),
        retry_after,
        quiet: ms(w.quiet_ms.unwrap_or(0)),
        result: Value::Null,
        raw,
        cause: None,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_is_any_sidecar_that_cannot_serve_now() {
        for code in ["draining", "store_unavailable"] {
            let e = of_answer(503, format!(r#"{{"code":"{code}"}}"#).as_bytes(), Some(Duration::from_secs(3)), &Subject::default());
            assert!(matches!(&e, Error::Unavailable(p) if p.retry_after == Some(Duration::from_secs(3))), "{e:?}");
        }
        for code in ["unreachable", "connection_lost", "timeout"] {
            let e = Error::from(ours(code, "k", "nobody is there"));
            assert!(matches!(e, Error::Unavailable(_)), "{e:?}");
        }
        let e = of_answer(429, br#"{"code":"limit"}"#, None, &Subject::default());
        assert!(matches!(e, Error::LimitReached(_)), "{e:?}");
    }
}
