use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::client::tell;
use crate::core::{Core, Inner, Patience};
use crate::error::{closed, of_answer, ours, Error, Result, Subject};
use crate::options::{lacking, Query};
use crate::transport::{lock_path, query_of, Call, SILENCE};
use crate::types::{Event, FromAnswer, Holder};

/// How many items are read ahead.
const AHEAD: usize = 16;

/// A stream of items: a [`Stream`], and [`Items::next`] without more traits. It ends after an error. A drop ends it.
#[must_use = "a stream does nothing until it is read"]
pub struct Items<T> {
    items: mpsc::Receiver<Result<T>>,
    task: Option<AbortHandle>,
    _client: Arc<Inner>,
}

impl<T> Items<T> {
    /// The next item.
    pub async fn next(&mut self) -> Option<Result<T>> {
        poll_fn(|cx| self.items.poll_recv(cx)).await
    }

    /// All items, or the first error. Streams of events do not end by themselves.
    pub async fn all(mut self) -> Result<Vec<T>> {
        let mut all = Vec::new();
        while let Some(item) = self.next().await {
            all.push(item?);
        }
        Ok(all)
    }
}

impl<T> Stream for Items<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        self.items.poll_recv(cx)
    }
}

impl<T> Drop for Items<T> {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl<T> std::fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Items").finish_non_exhaustive()
    }
}

/// Where the items go. It is over when nobody reads any more.
type Out<T> = mpsc::Sender<Result<T>>;

struct Enough;

/// A stream whose items are made in the client's thread. The error is its last item.
fn stream<T, F, R>(client: &Arc<Inner>, run: F) -> Items<T>
where
    T: Send + 'static,
    F: FnOnce(Arc<Core>, Out<T>) -> R,
    R: Future<Output = Result<(), Failed>> + Send + 'static,
{
    let (out, items) = mpsc::channel(AHEAD);
    let work = run(client.core.clone(), out.clone());
    let failed = out.clone();
    let started = client.start(async move {
        if let Err(Failed::By(e)) = work.await {
            let _ = out.send(Err(e)).await;
        }
    });
    let task = started.map_err(|e| failed.try_send(Err(e))).ok();
    Items { items, task, _client: client.clone() }
}

/// Why a stream ends.
enum Failed {
    By(Error),
    /// Nobody reads it.
    Left,
}

impl From<Error> for Failed {
    fn from(e: Error) -> Failed {
        Failed::By(e)
    }
}

impl From<Enough> for Failed {
    fn from(_: Enough) -> Failed {
        Failed::Left
    }
}

/// The items of a list, page by page.
pub(crate) fn pages<T: FromAnswer + Send + 'static>(client: &Arc<Inner>, path: String, query: &Query, feature: &'static str, member: &'static str) -> Items<T> {
    let mut values = query.values();
    stream(client, move |core, out| async move {
        loop {
            let path = format!("{path}{}", query_of(&values));
            let mut page: Value = core
                .read(|session| {
                    let call = Call { method: "GET", path: path.clone(), repeatable: true, ..Call::default() };
                    async move {
                        lacking(&session.about, &[feature])?;
                        let text = session.text(call).await?;
                        serde_json::from_slice(&text).map_err(|e| ours("bad_answer", "", format!("a list cannot be read ({e})")).because(e))
                    }
                })
                .await?;
            let next = page["next_cursor"].as_str().unwrap_or_default().to_owned();
            let Some(Value::Array(items)) = page.get_mut(member).map(Value::take) else {
                return Err(Error::from(ours("bad_answer", "", "the answer has no list")).into());
            };
            for item in items {
                let item = T::from_answer(item).map_err(|e| ours("bad_answer", "", format!("an item of a list cannot be read ({e})")).because(e))?;
                out.send(Ok(item)).await.map_err(|_| Enough)?;
            }
            if next.is_empty() {
                return Ok(());
            }
            values.retain(|(name, _)| *name != "cursor");
            values.push(("cursor", next));
        }
    })
}

/// What happens to a key, as `map` wants it.
pub(crate) fn events<T: Send + 'static>(client: &Arc<Inner>, key: &str, mut map: impl FnMut(Event) -> Option<T> + Send + 'static) -> Items<T> {
    let key = key.to_owned();
    stream(client, move |core, out| async move {
        let mut patience = Patience::new(Some(core.reconnect));
        let (mut reached, mut told) = (false, false);
        loop {
            let e = match follow(&core, &key, &out, &mut map, &mut || {
                (reached, told) = (true, false);
                patience.renew();
            })
            .await
            {
                Err(Failed::By(e)) => e,
                other => return other,
            };
            let may_return = reached && (e.is_away() || e.is_code(&["store_unavailable", "limit"])) && !e.is_closed();
            if !may_return {
                return Err(e.into());
            }
            if !told {
                tell(&core, &e);
            }
            told = true;
            if !patience.pause().await {
                return Err(e.into());
            }
        }
    })
}

/// Reads one stream until its end.
async fn follow<T>(core: &Arc<Core>, key: &str, out: &Out<T>, map: &mut impl FnMut(Event) -> Option<T>, heard: &mut impl FnMut()) -> Result<(), Failed> {
    if core.is_closed() {
        return Err(closed().into());
    }
    if let Some(session) = core.session() {
        lacking(&session.about, &["events"])?; // an older sidecar without a session has no such path
    }
    let about = Subject::key(key);
    let call = Call { method: "GET", path: lock_path(key, "/events"), timeout: Some(core.timeout), about: about.clone(), ..Call::default() };
    let mut stream = core.transport.open(&call).await?;
    loop {
        let event = tokio::select! {
            biased;
            event = stream.next(SILENCE) => event,
            why = core.transport.life.wait() => return Err(why.into()),
            () = out.closed() => return Err(Failed::Left),
        };
        let (name, data) = event.map_err(|e| core.transport.ended(key, e))?;
        if name == "problem" {
            return Err(of_answer(503, &data, None, &about).into());
        }
        let event = Event::read(&name, &data).map_err(|e| ours("bad_answer", key, format!("the event {name} cannot be read")).because(e))?;
        heard();
        if let Some(item) = map(event) {
            out.send(Ok(item)).await.map_err(|_| Enough)?;
        }
    }
}

pub(crate) fn leader_data(holder: Option<Holder>) -> Value {
    holder.map(|holder| holder.data).unwrap_or_default()
}

/// The data of each leader, when it changes.
pub(crate) fn leaders() -> impl FnMut(Event) -> Option<Value> {
    let mut last = None;
    move |event| {
        let data = match (event.kind.as_str(), event.lock, event.holder) {
            ("state", Some(lock), _) => leader_data(lock.holder),
            ("acquired", _, Some(holder)) => leader_data(Some(holder)),
            ("released" | "expired", _, _) => Value::Null,
            _ => return None,
        };
        if last.as_ref() == Some(&data) {
            return None;
        }
        last = Some(data.clone());
        Some(data)
    }
}
