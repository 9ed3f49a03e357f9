//! Against a sidecar of the test's own, which loses answers.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{lost, until, within};
use futures_util::FutureExt;
use locksidecar::{Client, Error, Options, Query, Release};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;

/// A call as it came.
#[derive(Clone, Debug)]
struct Came {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Value,
}

impl Came {
    fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path.starts_with(path)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// What it answers.
enum Say {
    Json(u16, Value),
    Text(String),
    /// The connection ends without an answer.
    Cut,
    /// There is no answer until the test says so.
    After(Arc<Notify>, Value),
}

type Handle = dyn Fn(&Came) -> Say + Send + Sync;

/// A sidecar of the test's own.
struct Fake {
    folder: std::path::PathBuf,
    features: Vec<&'static str>,
    calls: Mutex<Vec<Came>>,
    /// Connections that ended in the middle of a call.
    left: AtomicUsize,
    /// What the session's stream says.
    news: tokio::sync::broadcast::Sender<String>,
    handle: Box<Handle>,
}

impl Fake {
    fn start(features: &[&'static str], handle: impl Fn(&Came) -> Say + Send + Sync + 'static) -> Arc<Fake> {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let folder = std::env::temp_dir().join(format!("ls-rsw-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::SeqCst)));
        std::fs::create_dir(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("s.sock")).unwrap();
        let fake = Arc::new(Fake {
            folder,
            features: [&["wait", "data"], features].concat(),
            calls: Mutex::default(),
            left: AtomicUsize::new(0),
            news: tokio::sync::broadcast::Sender::new(16),
            handle: Box::new(handle),
        });
        let of = fake.clone();
        tokio::spawn(async move {
            while let Ok((conn, _)) = listener.accept().await {
                tokio::spawn(of.clone().serve(conn));
            }
        });
        fake
    }

    fn client(&self) -> Client {
        Client::builder().socket(self.folder.join("s.sock")).timeout(Duration::from_secs(2)).reconnect(Duration::ZERO).build()
    }

    fn calls(&self, method: &str, path: &str) -> Vec<Came> {
        self.calls.lock().unwrap().iter().filter(|came| came.is(method, path)).cloned().collect()
    }

    async fn serve(self: Arc<Self>, conn: UnixStream) {
        let (from, mut to) = conn.into_split();
        let mut from = BufReader::new(from);
        while let Some(came) = read(&mut from).await {
            self.calls.lock().unwrap().push(came.clone());
            let said = match (came.method.as_str(), came.path.as_str()) {
                ("GET", "/v1") => Say::Json(200, json!({"version": "v0", "api": "v1", "namespace": "n", "features": self.features})),
                ("POST", "/v1/sessions") => {
                    let mut news = self.news.subscribe();
                    let opened =
                        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n:\n\nevent: session\ndata: {\"session\":\"s3cret\",\"ttl_ms\":15000}\n\n";
                    if to.write_all(opened.as_bytes()).await.is_err() {
                        return;
                    }
                    loop {
                        let mut byte = [0];
                        tokio::select! {
                            _ = from.read(&mut byte) => return,
                            Ok(text) = news.recv() => if to.write_all(text.as_bytes()).await.is_err() { return },
                        }
                    }
                }
                ("DELETE", "/v1/sessions/s3cret") => Say::Json(200, json!({"ended": true})),
                _ => (self.handle)(&came),
            };
            let (status, text) = match said {
                Say::Json(status, body) => (status, body.to_string()),
                Say::Text(text) => (200, text),
                Say::Cut => return,
                Say::After(go, body) => {
                    let mut byte = [0];
                    tokio::select! {
                        () = go.notified() => (200, body.to_string()),
                        _ = from.read(&mut byte) => {
                            self.left.fetch_add(1, Ordering::SeqCst);
                            return;
                        }
                    }
                }
            };
            if to.write_all(format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nRetry-After: 3\r\n\r\n{text}", text.len()).as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn read(from: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Came> {
    let mut line = String::new();
    from.read_line(&mut line).await.ok().filter(|n| *n > 0)?;
    let mut first = line.split(' ').map(str::to_owned);
    let (method, path) = (first.next()?, first.next()?);
    let (mut headers, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        from.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        if name == "Content-Length" {
            length = value.parse().ok()?;
        }
        headers.push((name.to_owned(), value.to_owned()));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await.ok()?;
    Some(Came { method, path, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
}

fn grant() -> Value {
    json!({"granted": true, "key": "k", "token": 7, "session": "s", "bind": "session", "reentry": 1, "expires_in_ms": 14000, "waited_ms": 0,
        "acquired_at": "2026-01-02T15:04:05Z", "mode": "exclusive", "limit": null, "slot": null, "future": 1})
}

fn done() -> Say {
    Say::Json(200, json!({"released": true, "reentry": 0, "held_ms": 1}))
}

// Proves: client lost answer
/// A release whose answer was lost is repeated, and that it is done already is its success.
#[tokio::test]
async fn a_lost_answer_of_a_release() {
    let releases = AtomicUsize::new(0);
    let fake = Fake::start(&[], move |came| match came.method.as_str() {
        "PUT" => Say::Json(200, grant()),
        _ if releases.fetch_add(1, Ordering::SeqCst) == 0 => Say::Cut,
        _ => Say::Json(409, json!({"code": "not_holder", "reason": "released", "detail": "it was released"})),
    });
    let client = fake.client();
    let lock = client.acquire("k", Options::new()).await.unwrap();
    let e = lock.release().await.unwrap_err();
    assert!(e.code() == "connection_lost" && matches!(e, Error::Unavailable(_)), "{e:?}");
    until("the repetition", || async { lock.released().map(drop).ok_or_else(String::new) }).await;
    assert!(lock.release().await.unwrap().free);
    assert_eq!(fake.calls("POST", "/v1/locks/k/release").len(), 2);
}

// Proves: client lost answer
/// An acquire whose answer was lost, or whose caller has left, is withdrawn by its request id, and its connection is closed.
#[tokio::test]
async fn a_lost_answer_of_an_acquire() {
    let (asked, never) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let told = asked.clone();
    let fake = Fake::start(&[], move |came| {
        if came.method != "PUT" {
            return done();
        }
        if came.body["wait_ms"] == 0 {
            return Say::Text("{not JSON".into());
        }
        told.notify_one();
        Say::After(never.clone(), grant())
    });
    let client = fake.client();
    let e = client.acquire("k", Options::new().wait(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(e, Error::BadAnswer(_)), "{e:?}");
    let withdrawn = |n: usize| {
        let fake = fake.clone();
        async move {
            until("the withdrawal", || async {
                if fake.calls("DELETE", "/v1/locks/k?request_id=").len() == n {
                    Ok(())
                } else {
                    Err(format!("{:?}", fake.calls("DELETE", "")))
                }
            })
            .await;
            let (asked, withdrawn) = (fake.calls("PUT", "/v1/locks/k"), fake.calls("DELETE", "/v1/locks/k?request_id="));
            let id = asked[n - 1].body["request_id"].as_str().unwrap().to_owned();
            assert!(!id.is_empty() && withdrawn[n - 1].path.ends_with(&id), "another request was withdrawn");
        }
    };
    withdrawn(1).await;
    tokio::select! {
        lock = client.acquire("k", Options::new()) => panic!("{lock:?}"),
        () = asked.notified() => {}
    }
    withdrawn(2).await;
    until("its connection is closed", || async {
        if fake.left.load(Ordering::SeqCst) == 1 {
            Ok(())
        } else {
            Err(String::new())
        }
    })
    .await;
    // A request that the app has named stays: other parts may hold its grant.
    tokio::select! {
        lock = client.acquire("k", Options::new().request_id("0b8e7d3c-7d2e-4a53-9e52-0123456789ab")) => panic!("{lock:?}"),
        () = asked.notified() => {}
    }
    until("it has left", || async {
        if fake.left.load(Ordering::SeqCst) == 2 {
            Ok(())
        } else {
            Err(String::new())
        }
    })
    .await;
    client.get("k").await.unwrap_err();
    assert_eq!(fake.calls("DELETE", "/v1/locks/k").len(), 2);
}

/// A grant whose answer has come, but whose caller has left before it looked, is released by its token.
#[tokio::test]
async fn a_grant_that_nobody_takes() {
    let fake = Fake::start(&[], |came| if came.method == "PUT" { Say::Json(200, grant()) } else { done() });
    let client = fake.client();
    client.connect().await.unwrap();
    let mut call = Box::pin(client.acquire("k", Options::new()));
    // Polled once, so it has begun. Its answer comes in the client's thread, while nobody polls.
    std::future::poll_fn(|cx| std::task::Poll::Ready(Future::poll(Pin::as_mut(&mut call), cx).is_pending())).await;
    until("the answer", || async {
        if fake.calls("PUT", "").is_empty() {
            Err(String::new())
        } else {
            Ok(())
        }
    })
    .await;
    until("the answer was read", || async {
        // A call that comes later has its answer.
        client.call("GET", "/v1", &Value::Null).await.map(drop).map_err(|e| e.to_string())
    })
    .await;
    drop(call);
    until("it is given back", || async {
        let (released, withdrawn) = (fake.calls("POST", "/v1/locks/k/release"), fake.calls("DELETE", "/v1/locks/k?request_id"));
        if released.iter().any(|came| came.body["token"] == 7) || !withdrawn.is_empty() {
            Ok(())
        } else {
            Err(String::new())
        }
    })
    .await;
}

/// News of a lock may come before its grant is read.
#[tokio::test]
async fn early_news() {
    let (go, asked) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (later, told) = (go.clone(), asked.clone());
    let fake = Fake::start(&[], move |came| match (came.method.as_str(), came.path.as_str()) {
        ("PUT", "/v1/locks/other") => Say::Json(200, json!({"granted": true, "key": "other", "token": 8, "bind": "session", "expires_in_ms": 14000})),
        ("PUT", _) => {
            told.notify_one();
            Say::After(later.clone(), grant())
        }
        _ => done(),
    });
    let client = fake.client();
    let other = client.acquire("other", Options::new()).await.unwrap();
    let reasons: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = reasons.clone();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.acquire("k", Options::new().on_stop(move |request| heard.lock().unwrap().push(request.reason.unwrap()))).await }
    });
    within("the call", asked.notified()).await;
    for (name, reason) in [("stop", "one"), ("stop", "two"), ("lost", "forced")] {
        fake.news.send(format!("event: {name}\ndata: {{\"key\":\"k\",\"token\":7,\"reason\":\"{reason}\"}}\n\n")).unwrap();
    }
    fake.news.send("event: stop\ndata: {\"key\":\"other\",\"token\":8}\n\n".into()).unwrap();
    within("the news is read", other.stopping()).await; // the last of it
    go.notify_one();
    let lock = within("the grant", call).await.unwrap().unwrap();
    assert_eq!(lost(&lock).await.reason(), "forced");
    assert_eq!(*reasons.lock().unwrap(), ["one", "two"]);
    assert_eq!(lock.stop_request().unwrap().reason.as_deref(), Some("two"));
}

/// A sidecar that lacks a feature is not asked for it.
#[tokio::test]
async fn an_old_sidecar() {
    let fake = Fake::start(&[], |came| panic!("it was asked {came:?}"));
    let client = fake.client();
    let second = Duration::from_secs(1);
    for (name, options) in [
        ("shared", Options::new().shared()),
        ("hold", Options::new().max_hold(second)),
        ("outcome", Options::new().skip_if_done()),
        ("reentrant", Options::new().reentrant()),
        ("bind_ttl", Options::new().bind_to_ttl()),
    ] {
        let e = client.acquire("k", options).await.unwrap_err();
        assert!(matches!(e, Error::Unsupported(_)) && e.to_string().contains(name), "{name}: {e}");
    }
    assert!(matches!(client.stop("k", "").await, Err(Error::Unsupported(_))));
    assert!(matches!(client.locks(Query::new()).all().await, Err(Error::Unsupported(_))));
    assert!(matches!(client.events("k").next().await, Some(Err(Error::Unsupported(_)))));
}

/// The text of an error is one printable line, whatever others have put into it. Nothing shows the session's id, which gives access to it.
#[tokio::test]
async fn errors_are_printable() {
    let fake = Fake::start(&[], |_| Say::Json(503, json!({"code": "store_unavailable", "detail": "failed:\n\t10.0.0.1 \u{1b}]0;x\u{7}\u{202e}"})));
    let client = fake.client();
    let e = client.acquire("a\u{202e}b", Options::new()).await.unwrap_err();
    let text = e.to_string();
    assert!(!text.contains(['\n', '\t', '\u{1b}', '\u{7}', '\u{202e}']) && text.contains("failed: 10.0.0.1"), "{text:?}");
    assert_eq!(e.problem().retry_after, Some(Duration::from_secs(3)));
    let shown = format!("{client:?} {e:?} {:?}", client.semaphore("k", 1));
    assert!(!shown.contains("s3cret"), "{shown}");
    let fake = Fake::start(&[], |_| Say::Text("<html>".into()));
    assert!(matches!(fake.client().get("k").await, Err(Error::BadAnswer(_))));
}

/// The app's own trace headers are sent with an acquire and its release, and not with the session.
#[tokio::test]
async fn trace_headers_of_the_app() {
    let fake = Fake::start(&[], |came| if came.method == "PUT" { Say::Json(200, grant()) } else { done() });
    let client = fake.client();
    client.acquire("k", Options::new().traceparent("00-mine", "a=b")).await.unwrap().release().await.unwrap();
    for call in [&fake.calls("PUT", "")[0], &fake.calls("POST", "/v1/locks/k/release")[0]] {
        assert_eq!((call.header("traceparent"), call.header("tracestate")), (Some("00-mine"), Some("a=b")), "{call:?}");
    }
    assert_eq!(fake.calls("POST", "/v1/sessions")[0].header("traceparent"), None);
    client.acquire("k", Options::new().traceparent("00-mine\r\nX: y", "")).await.unwrap().release().await.unwrap();
    assert!(fake.calls("PUT", "")[1].header("traceparent").is_none() && fake.calls("PUT", "")[1].header("x").is_none());
}

/// A lock that is bound to its TTL is none of the session, so its calls do not name a session that may be over.
#[tokio::test]
async fn a_lock_of_a_ttl_outlives_the_session() {
    let fake = Fake::start(&["bind_ttl"], |came| match came.method.as_str() {
        "PUT" => {
            let mut bound = grant();
            bound["bind"] = "ttl".into();
            Say::Json(200, bound)
        }
        _ if came.header("lock-session").is_some() => Say::Json(410, json!({"code": "session_ended", "detail": "it is over"})),
        _ => done(),
    });
    let client = fake.client();
    let lock = client.acquire("k", Options::new().bind_to_ttl().wait(Duration::ZERO)).await.unwrap();
    let of_session = client.get("k").await.unwrap_err(); // ends the session, and asks again
    assert!(matches!(of_session, Error::BadAnswer(_)), "{of_session:?}");
    assert!(lock.loss().is_none(), "it is lost with the session");
    lock.release().await.unwrap();
}

/// The release of an entry names the request that made it, so a repeated one does not end two.
#[tokio::test]
async fn the_release_of_an_entry_names_it() {
    let fake = Fake::start(&["reentrant"], |came| if came.method == "PUT" { Say::Json(200, grant()) } else { done() });
    let client = fake.client();
    client.lock("k", Options::new().reentrant().wait(Duration::ZERO), |_| async { Ok::<_, Error>(()) }).await.unwrap();
    let (entered, ended) = (&fake.calls("PUT", "")[0].body, &fake.calls("POST", "/v1/locks/k/release")[0].body);
    assert!(
        entered["request_id"].is_string() && entered["request_id"] == ended["request_id"] && entered["owner"].as_str().unwrap().starts_with("task-"),
        "{entered} {ended}"
    );
}

/// A connection that the sidecar has closed is not used again, and a call that can be repeated is.
#[tokio::test]
async fn a_connection_that_was_closed() {
    let first = AtomicUsize::new(0);
    let fake = Fake::start(&[], move |came| match came.method.as_str() {
        "PUT" => Say::Json(200, grant()),
        "PATCH" if first.fetch_add(1, Ordering::SeqCst) == 0 => Say::Cut,
        "PATCH" => Say::Json(200, grant()),
        _ => done(),
    });
    let client = fake.client();
    let lock = client.acquire("k", Options::new()).await.unwrap();
    lock.check().await.unwrap();
    assert_eq!(fake.calls("PATCH", "").len(), 2);
    lock.release_with(Release::new()).await.unwrap();
}

/// A release that an app has begun and neither polls nor drops ends no other call: the next one says so, and the drop lets the first go on.
#[tokio::test]
async fn a_release_that_nothing_polls() {
    let releases = AtomicUsize::new(0);
    let fake = Fake::start(&[], move |came| match came.method.as_str() {
        "PUT" | "PATCH" => Say::Json(200, grant()),
        _ if releases.fetch_add(1, Ordering::SeqCst) == 0 => Say::After(Arc::new(Notify::new()), Value::Null), // never
        _ => done(),
    });
    let client = fake.client();
    let guard = client.acquire("k", Options::new()).await.unwrap();
    let (lock, handle) = (guard.handle(), guard.handle());
    let mut first = Box::pin(async move { lock.release().await });
    assert!(first.as_mut().now_or_never().is_none());
    let refused = within("the second release", handle.release()).await.unwrap_err();
    assert!(refused.code() == "timeout" && refused.to_string().contains("nothing awaits it"), "{refused}");
    within("another call", handle.check()).await.unwrap();
    drop(first); // its time is over, so it is repeated
    until("the release has its answer", || async { handle.released().map(drop).ok_or_else(String::new) }).await;
}
