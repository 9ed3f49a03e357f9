//! Calls. Each has a connection of its own until its answer, so its end ends only this call.

use std::fmt::Write as _;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use percent_encoding::{utf8_percent_encode, AsciiSet, NON_ALPHANUMERIC};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex as Turn;

use crate::endpoint::{is_exhausted, Endpoint};
use crate::error::{of_answer, ours, Error, Result, Subject};
use crate::http::{Broken, Conn, Head};
use crate::latch::Latch;
use crate::sse::Stream;

/// The most connections that are kept for the next calls, and for how long.
const MAX_IDLE: usize = 64;
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest answer: a full page of locks, each with its data, fits.
const MAX_ANSWER: usize = 32 << 20;
/// After which time a stream without any line is over: the sidecar sends a comment every 15 s.
pub(crate) const SILENCE: Duration = Duration::from_secs(45);

/// Everything but unreserved characters.
const PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

/// The path of a key.
pub(crate) fn lock_path(key: &str, more: &str) -> String {
    format!("/v1/locks/{}{more}", encoded(key))
}

pub(crate) fn query_of(values: &[(&str, String)]) -> String {
    let mut query = String::new();
    for (i, (name, value)) in values.iter().enumerate() {
        let _ = write!(query, "{}{name}={}", if i == 0 { '?' } else { '&' }, encoded(value));
    }
    query
}

/// Headers of a trace.
pub(crate) type Headers = Vec<(String, String)>;

/// One call of the API.
#[derive(Default)]
pub(crate) struct Call {
    pub method: &'static str,
    pub path: String,
    pub body: Option<Vec<u8>>,
    /// The id of the session that it joins.
    pub session: Option<String>,
    /// Limits the time for the answer.
    pub timeout: Option<Duration>,
    pub about: Subject,
    /// The store is asked.
    pub fresh: bool,
    /// It may last, so it does not get the connection in reserve.
    pub waits: bool,
    /// It uses the connection in reserve.
    pub reserved: bool,
    /// It may be sent again on another connection.
    pub repeatable: bool,
    pub headers: Headers,
}

pub(crate) struct Transport {
    pub at: Endpoint,
    pub agent: String,
    idle: Mutex<Vec<(Conn, Instant)>>,
    /// One connection that is kept, for calls that must get through if the waiting calls have taken all file descriptors.
    reserve: Turn<Option<Conn>>,
    /// Set at the end of the client.
    pub life: Latch<Error>,
}

impl Transport {
    pub fn new(at: Endpoint, agent: String) -> Transport {
        Transport { at, agent, idle: Mutex::new(Vec::new()), reserve: Turn::new(None), life: Latch::new() }
    }

    /// Ends all calls.
    pub fn close(&self, why: Error) {
        self.life.set(why);
        crate::lock(&self.idle).clear();
        if let Ok(mut reserve) = self.reserve.try_lock() {
            *reserve = None;
        }
    }

    /// Makes a call, and decodes its answer.
    pub async fn answer<T: DeserializeOwned>(&self, call: Call) -> Result<T> {
        let (what, key) = (format!("{} {}", call.method, call.path), call.about.key.clone());
        let text = self.text(call).await?;
        serde_json::from_slice(&text).map_err(|e| ours("bad_answer", &key, format!("the answer to {what} cannot be read ({e})")).because(e))
    }

    /// Makes a call, and returns its answer. The end of the client ends it.
    pub async fn text(&self, call: Call) -> Result<Vec<u8>> {
        let timeout = call.timeout;
        let late = self.late(&call);
        let whole = async {
            match timeout {
                Some(timeout) => tokio::time::timeout(timeout, self.exchange(call)).await.unwrap_or(Err(late)),
                None => self.exchange(call).await,
            }
        };
        tokio::select! {
            biased;
            answer = whole => answer,
            why = self.life.wait() => Err(why),
        }
    }

    fn late(&self, call: &Call) -> Error {
        ours(
            "timeout",
            &call.about.key,
            format!(
                "the sidecar at {} does not answer in time: no answer to {} {} within {:?}; is it overloaded, or suspended?",
                self.at.name,
                call.method,
                call.path,
                call.timeout.unwrap_or_default()
            ),
        )
        .into()
    }

    async fn exchange(&self, mut call: Call) -> Result<Vec<u8>> {
        let request = self.request(&call)?;
        if !call.reserved {
            match self.connected(&call, &request).await {
                Ok((conn, head)) => return self.read(conn, head, &call.about).await.and_then(|(text, conn)| self.keep(conn, text)),
                Err(Failure::Dial(e)) if !call.waits && is_exhausted(&e) => call.reserved = true, // nothing was sent
                Err(failure) => return Err(self.failure(&call, failure)),
            }
        }
        let mut reserve = self.reserve.lock().await;
        let mut kept = reserve.take();
        if let Some(conn) = &mut kept {
            if !conn.is_open().await {
                kept = None;
            }
        }
        let mut conn = match kept {
            Some(conn) => conn,
            None => self.at.dial(self.at.turn().await).await.map_err(|e| self.failure(&call, Failure::Dial(e)))?,
        };
        let head = conn.send(&request).await.map_err(|broken| self.failure(&call, Failure::Broken(broken)))?;
        let (text, conn) = self.read(conn, head, &call.about).await?;
        *reserve = conn;
        text
    }

    fn keep(&self, conn: Option<Conn>, text: Result<Vec<u8>>) -> Result<Vec<u8>> {
        if let (Some(conn), false) = (conn, self.life.is_set()) {
            let mut idle = crate::lock(&self.idle);
            let now = Instant::now();
            idle.retain(|(_, since)| now - *since < IDLE_TIMEOUT);
            if idle.len() < MAX_IDLE {
                idle.push((conn, now));
            }
        }
        text
    }

    /// Reads a body. The connection is returned if it can have another call.
    #[allow(clippy::type_complexity)]
    async fn read(&self, mut conn: Conn, head: Head, about: &Subject) -> Result<(Result<Vec<u8>>, Option<Conn>)> {
        let text = match conn.body(head.framing, MAX_ANSWER).await {
            Ok(Some(text)) => text,
            Ok(None) => return Err(ours("bad_answer", &about.key, format!("the answer has more than {MAX_ANSWER} bytes")).into()),
            Err(error) => return Err(self.broken(&about.key, Broken { error, silent: false })),
        };
        let text =
            if (200..300).contains(&head.status) { Ok(text) } else { Err(of_answer(head.status, &text, head.retry_after.map(Duration::from_secs), about)) };
        Ok((text, head.keep.then_some(conn)))
    }

    /// Sends a call over a connection that was kept, or a new one, and reads the head of its answer.
    async fn connected(&self, call: &Call, request: &[u8]) -> Result<(Conn, Head), Failure> {
        let kept = || crate::lock(&self.idle).pop();
        let turn = loop {
            let found = kept();
            let turn = if found.is_none() { self.at.turn().await } else { None };
            let Some((mut conn, since)) = found.or_else(kept) else { break turn }; // a call may have ended meanwhile
            drop(turn);
            if since.elapsed() >= IDLE_TIMEOUT || !conn.is_open().await {
                continue;
            }
            match conn.send(request).await {
                Ok(head) => return Ok((conn, head)),
                Err(broken) if broken.silent && call.repeatable => break self.at.turn().await, // the sidecar has just closed it
                Err(broken) => return Err(Failure::Broken(broken)),
            }
        };
        let mut conn = self.at.dial(turn).await.map_err(Failure::Dial)?;
        let head = conn.send(request).await.map_err(Failure::Broken)?;
        Ok((conn, head))
    }

    fn request(&self, call: &Call) -> Result<Vec<u8>> {
        self.at.check()?;
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", call.method, call.path, self.at.authority());
        let mut add = |name: &str, value: &str| {
            // A lock must not fail because of a trace, nor may a value begin another header.
            if name.bytes().all(|b| b.is_ascii_graphic() && b != b':') && value.bytes().all(|b| b >= b' ' && b != 0x7f) {
                let _ = write!(head, "{name}: {value}\r\n");
            }
        };
        add("User-Agent", &self.agent);
        if let Some(authorization) = self.at.authorization()? {
            add("Authorization", &authorization);
        }
        if let Some(session) = &call.session {
            add("Lock-Session", session);
        }
        if call.fresh {
            add("Cache-Control", "no-cache");
        }
        for (name, value) in &call.headers {
            add(name, value);
        }
        let body = call.body.as_deref().unwrap_or_default();
        if call.body.is_some() {
            add("Content-Type", "application/json");
        }
        if !body.is_empty() || call.method != "GET" {
            add("Content-Length", &body.len().to_string());
        }
        head.push_str("\r\n");
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        Ok(request)
    }

    fn failure(&self, call: &Call, failure: Failure) -> Error {
        match failure {
            Failure::Dial(e) => ours("unreachable", &call.about.key, self.at.what_to_check(&e)).because(e),
            Failure::Broken(broken) => self.broken(&call.about.key, broken),
        }
    }

    fn broken(&self, key: &str, broken: Broken) -> Error {
        let (name, error) = (&self.at.name, broken.error);
        if error.kind() == io::ErrorKind::InvalidData {
            return ours("bad_answer", key, format!("what listens at {name} is no sidecar: {error}")).because(error);
        }
        ours("connection_lost", key, format!("the sidecar at {name} closed the connection before it answered ({error})")).because(error)
    }

    /// Makes a call whose answer is a stream, on a connection of its own.
    pub async fn open(&self, call: Call) -> Result<Stream> {
        let late = self.late(&call);
        let timeout = call.timeout.unwrap_or(SILENCE);
        let opened = async {
            let request = self.request(&call)?;
            let mut conn = self.at.dial(self.at.turn().await).await.map_err(|e| self.failure(&call, Failure::Dial(e)))?;
            let head = conn.send(&request).await.map_err(|broken| self.failure(&call, Failure::Broken(broken)))?;
            if head.status != 200 {
                return Err(match self.read(conn, head, &call.about).await?.0 {
                    Err(e) => e,
                    Ok(_) => ours("bad_answer", &call.about.key, "a stream was expected").into(),
                });
            }
            Ok(Stream::new(conn, head.framing))
        };
        tokio::select! {
            biased;
            stream = tokio::time::timeout(timeout, opened) => stream.unwrap_or(Err(late)),
            why = self.life.wait() => Err(why),
        }
    }

    /// The error of a stream that has ended.
    pub fn ended(&self, key: &str, error: io::Error) -> Error {
        self.life.get().unwrap_or_else(|| self.broken(key, Broken { error, silent: false }))
    }
}

enum Failure {
    /// Nothing was sent.
    Dial(io::Error),
    Broken(Broken),
}
