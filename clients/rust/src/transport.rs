//! Calls. Each has a connection of its own until its answer, so its end ends only this call.
//!
//! A caller writes to a kept connection and reads from it itself, so that no other thread has to wake up for the call but to say that the answer has come. All
//! else runs in the client's thread, because an app may leave a future without polling it or dropping it: such a future holds nothing that other calls wait for.

use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use percent_encoding::{utf8_percent_encode, AsciiSet, NON_ALPHANUMERIC};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex as Turn;

use crate::core::Task;
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
#[derive(Clone, Default)]
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

impl Call {
    /// Whether it goes on with another connection after a kept one, which the sidecar may have closed before, has broken.
    fn goes_on(&self, broken: &Broken) -> bool {
        broken.silent && (self.repeatable || !broken.began)
    }
}

pub(crate) struct Transport {
    pub at: Endpoint,
    pub agent: String,
    idle: Mutex<Vec<(Conn, Instant)>>,
    /// One connection that is kept, for calls that must get through if the waiting calls have taken all file descriptors.
    reserve: Mutex<Option<Conn>>,
    /// Held by the call that uses it.
    reserved: Turn<()>,
    /// Set at the end of the client.
    pub life: Latch<Error>,
}

impl Transport {
    pub fn new(at: Endpoint, agent: String) -> Arc<Transport> {
        Arc::new(Transport { at, agent, idle: Mutex::default(), reserve: Mutex::default(), reserved: Turn::default(), life: Latch::new() })
    }

    /// Ends all calls. No connection is kept any more.
    pub fn close(&self, why: Error) {
        self.life.set(why);
        crate::lock(&self.idle).clear();
        *crate::lock(&self.reserve) = None;
    }

    /// Makes a call, and decodes its answer.
    pub async fn answer<T: DeserializeOwned>(self: &Arc<Self>, call: &Call) -> Result<T> {
        let text = self.text(call).await?;
        serde_json::from_slice(&text)
            .map_err(|e| ours("bad_answer", &call.about.key, format!("the answer to {} {} cannot be read ({e})", call.method, call.path)).because(e))
    }

    /// Makes a call, and returns its answer. The end of the client ends it.
    pub async fn text(self: &Arc<Self>, call: &Call) -> Result<Vec<u8>> {
        if let Some(why) = self.life.get() {
            return Err(why);
        }
        let whole = async {
            match call.timeout {
                Some(timeout) => tokio::time::timeout(timeout, self.exchange(call)).await.unwrap_or_else(|_| Err(self.late(call))),
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

    async fn exchange(self: &Arc<Self>, call: &Call) -> Result<Vec<u8>> {
        let request = self.request(call)?;
        let mut sent = None;
        if !call.reserved {
            if let Some(answer) = self.on_kept(call, &request, &mut sent).await {
                return answer;
            }
        }
        let (transport, call) = (self.clone(), call.clone());
        // With a limit of its own, because its caller may not poll.
        let other = async move {
            match call.timeout {
                Some(timeout) => tokio::time::timeout(timeout, transport.on_other(&call, &request, sent)).await.unwrap_or_else(|_| Err(transport.late(&call))),
                None => transport.on_other(&call, &request, sent).await,
            }
        };
        Task::new(tokio::spawn(other)).await
    }

    /// Makes a call on a connection that was kept. `None`: it needs another one. `sent` is then why a try failed that the sidecar may have carried out.
    async fn on_kept(&self, call: &Call, request: &[u8], sent: &mut Option<Broken>) -> Option<Result<Vec<u8>>> {
        loop {
            let (mut conn, since) = crate::lock(&self.idle).pop()?;
            if since.elapsed() >= IDLE_TIMEOUT || !conn.is_open().await {
                continue;
            }
            let head = match conn.send(request).await {
                Ok(head) => head,
                Err(broken) if call.goes_on(&broken) => {
                    if broken.began {
                        *sent = Some(broken);
                    }
                    continue;
                }
                Err(broken) => return Some(Err(self.broken(&call.about.key, broken))),
            };
            return Some(self.finish(conn, head, &call.about).await);
        }
    }

    /// Makes a call on a new connection, or on the one in reserve. It runs in the client's thread.
    async fn on_other(&self, call: &Call, request: &[u8], mut sent: Option<Broken>) -> Result<Vec<u8>> {
        if !call.reserved {
            let mut turn = self.at.turn().await;
            if !crate::lock(&self.idle).is_empty() {
                drop(turn); // a call has ended meanwhile
                if let Some(answer) = self.on_kept(call, request, &mut sent).await {
                    return answer;
                }
                turn = self.at.turn().await;
            }
            match self.at.dial(turn).await {
                Ok(mut conn) => {
                    let head = conn.send(request).await.map_err(|broken| self.broken(&call.about.key, broken))?;
                    return self.finish(conn, head, &call.about).await;
                }
                Err(e) if !call.waits && is_exhausted(&e) => {} // this try has sent nothing
                Err(e) => return Err(self.undialed(call, e, sent)),
            }
        }
        let _turn = self.reserved.lock().await;
        let mut kept = crate::lock(&self.reserve).take();
        if let Some(conn) = &mut kept {
            if !conn.is_open().await {
                kept = None;
            }
        }
        let mut begun = None;
        if let Some(mut conn) = kept {
            match conn.send(request).await {
                Ok(head) => begun = Some((conn, head)),
                Err(broken) if call.goes_on(&broken) => sent = if broken.began { Some(broken) } else { sent },
                Err(broken) => return Err(self.broken(&call.about.key, broken)),
            }
        }
        let (mut conn, head) = match begun {
            Some(begun) => begun,
            None => {
                let mut conn = self.at.dial(self.at.turn().await).await.map_err(|e| self.undialed(call, e, sent))?;
                let head = conn.send(request).await.map_err(|broken| self.broken(&call.about.key, broken))?;
                (conn, head)
            }
        };
        let text = self.read(&mut conn, &head, &call.about).await?;
        let mut reserve = crate::lock(&self.reserve);
        if head.keep && !self.life.is_set() {
            *reserve = Some(conn);
        }
        drop(reserve);
        text
    }

    /// Reads the rest of an answer, and keeps the connection.
    async fn finish(&self, mut conn: Conn, head: Head, about: &Subject) -> Result<Vec<u8>> {
        let text = self.read(&mut conn, &head, about).await?;
        let mut idle = crate::lock(&self.idle);
        if head.keep && !self.life.is_set() {
            let now = Instant::now();
            idle.retain(|(_, since)| now - *since < IDLE_TIMEOUT);
            if idle.len() < MAX_IDLE {
                idle.push((conn, now));
            }
        }
        drop(idle);
        text
    }

    /// Reads a body. After the outer error the connection cannot be used.
    async fn read(&self, conn: &mut Conn, head: &Head, about: &Subject) -> Result<Result<Vec<u8>>> {
        let text = match conn.body(head.framing, MAX_ANSWER).await {
            Ok(Some(text)) => text,
            Ok(None) => return Err(ours("bad_answer", &about.key, format!("the answer has more than {MAX_ANSWER} bytes")).into()),
            Err(error) => return Err(self.broken(&about.key, Broken { error, silent: false, began: true })),
        };
        Ok(if (200..300).contains(&head.status) { Ok(text) } else { Err(of_answer(head.status, &text, head.retry_after.map(Duration::from_secs), about)) })
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

    /// There is no connection, so nothing was sent, unless by an earlier try.
    fn undialed(&self, call: &Call, e: io::Error, sent: Option<Broken>) -> Error {
        if let Some(broken) = sent {
            return self.broken(&call.about.key, broken);
        }
        ours("unreachable", &call.about.key, self.at.what_to_check(&e)).because(e)
    }

    fn broken(&self, key: &str, broken: Broken) -> Error {
        let (name, error) = (&self.at.name, broken.error);
        if error.kind() == io::ErrorKind::InvalidData {
            return ours("bad_answer", key, format!("what listens at {name} is no sidecar: {error}")).because(error);
        }
        ours("connection_lost", key, format!("the sidecar at {name} closed the connection before it answered ({error})")).because(error)
    }

    /// Makes a call whose answer is a stream, on a connection of its own.
    pub async fn open(&self, call: &Call) -> Result<Stream> {
        let timeout = call.timeout.unwrap_or(SILENCE);
        let opened = async {
            let request = self.request(call)?;
            let mut conn = self.at.dial(self.at.turn().await).await.map_err(|e| self.undialed(call, e, None))?;
            let head = conn.send(&request).await.map_err(|broken| self.broken(&call.about.key, broken))?;
            if head.status != 200 {
                return Err(match self.read(&mut conn, &head, &call.about).await? {
                    Err(e) => e,
                    Ok(_) => ours("bad_answer", &call.about.key, "a stream was expected").into(),
                });
            }
            Ok(Stream::new(conn, head.framing))
        };
        tokio::select! {
            biased;
            stream = tokio::time::timeout(timeout, opened) => stream.unwrap_or_else(|_| Err(self.late(call))),
            why = self.life.wait() => Err(why),
        }
    }

    /// The error of a stream that has ended.
    pub fn ended(&self, key: &str, error: io::Error) -> Error {
        self.life.get().unwrap_or_else(|| self.broken(key, Broken { error, silent: false, began: true }))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
    use tokio::net::UnixListener;

    use super::*;
    use crate::endpoint::Given;
    use crate::error::closed;

    /// A kept connection that is closed when a call comes: before its first byte, or after it was sent.
    struct Ended {
        before: bool,
        sent: bool,
    }

    impl AsyncRead for Ended {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            match self.sent {
                true => Poll::Ready(Ok(())),
                false => Poll::Pending,
            }
        }
    }

    impl AsyncWrite for Ended {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, b: &[u8]) -> Poll<io::Result<usize>> {
            self.sent = true;
            Poll::Ready(if self.before { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(b.len()) })
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A transport, and the calls that its server has got.
    fn served() -> (Arc<Transport>, Arc<AtomicUsize>) {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let path = std::env::temp_dir().join(format!("ls-rst-{}-{}.sock", std::process::id(), LAST.fetch_add(1, Ordering::SeqCst)));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        tokio::spawn(async move {
            while let Ok((mut conn, _)) = listener.accept().await {
                let calls = counted.clone();
                tokio::spawn(async move {
                    while conn.read(&mut [0; 4096]).await.is_ok_and(|n| n > 0) {
                        calls.fetch_add(1, Ordering::SeqCst);
                        conn.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
                    }
                });
            }
        });
        let given = Given { socket: Some(path), ..Given::default() };
        (Transport::new(Endpoint::new(&given, |_| None, |_| false), "test".to_owned()), calls)
    }

    fn call(reserved: bool, repeatable: bool) -> Call {
        Call { method: "POST", path: "/".to_owned(), reserved, repeatable, ..Call::default() }
    }

    /// A call of which nothing was sent goes on with another connection, also one that may not be carried out twice.
    #[tokio::test]
    async fn nothing_was_sent() {
        for reserved in [false, true] {
            let (transport, calls) = served();
            let keep = |before| {
                let conn = Conn::new(Box::new(Ended { before, sent: false }), None);
                if reserved {
                    *crate::lock(&transport.reserve) = Some(conn);
                } else {
                    *crate::lock(&transport.idle) = vec![(conn, Instant::now())];
                }
            };
            keep(true);
            assert_eq!(transport.text(&call(reserved, false)).await.unwrap(), b"{}");
            keep(false);
            assert_eq!(transport.text(&call(reserved, true)).await.unwrap(), b"{}");
            keep(false);
            assert_eq!(transport.text(&call(reserved, false)).await.unwrap_err().code(), "connection_lost");
            assert_eq!(calls.load(Ordering::SeqCst), 2);
        }
    }

    /// A call that may have been carried out has no known outcome, also if there is no connection for the next try.
    #[tokio::test]
    async fn no_connection_after_a_call_was_sent() {
        let given = Given { socket: Some("/nowhere/s.sock".into()), ..Given::default() };
        for reserved in [false, true] {
            for (before, code) in [(true, "unreachable"), (false, "connection_lost")] {
                let transport = Transport::new(Endpoint::new(&given, |_| None, |_| false), "test".to_owned());
                let conn = Conn::new(Box::new(Ended { before, sent: false }), None);
                if reserved {
                    *crate::lock(&transport.reserve) = Some(conn);
                } else {
                    *crate::lock(&transport.idle) = vec![(conn, Instant::now())];
                }
                assert_eq!(transport.text(&call(reserved, true)).await.unwrap_err().code(), code);
            }
        }
    }

    /// After the end of a client no connection is kept, and no call is made.
    #[tokio::test]
    async fn nothing_is_kept_after_the_end() {
        let (transport, calls) = served();
        for reserved in [false, true] {
            transport.text(&call(reserved, true)).await.unwrap();
        }
        transport.close(closed());
        for reserved in [false, true] {
            assert!(transport.text(&call(reserved, true)).await.unwrap_err().is_closed());
            // This one had begun before.
            assert_eq!(transport.exchange(&call(reserved, true)).await.unwrap(), b"{}");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 4);
        assert!(crate::lock(&transport.idle).is_empty() && crate::lock(&transport.reserve).is_none());
    }
}
