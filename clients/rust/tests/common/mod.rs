#![allow(dead_code)] // each test uses some of it

use std::future::Future;
use std::time::Duration;

use locksidecar::{testing::Sidecar, Client, Error, Result};

/// For what must happen soon. A busy machine may need long.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn start() -> (Sidecar, Client) {
    let sidecar = Sidecar::start(&[]);
    let client = sidecar.client();
    (sidecar, client)
}

/// Awaits what must happen soon.
pub async fn within<F: Future>(what: &str, work: F) -> F::Output {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Repeats a question to another process, which tells nobody, until the answer is right.
pub async fn until<F: Future<Output = std::result::Result<(), String>>>(what: &str, ask: impl Fn() -> F) {
    let end = std::time::Instant::now() + PATIENCE;
    while let Err(now) = ask().await {
        assert!(std::time::Instant::now() < end, "not within {PATIENCE:?}: {what}: {now}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub async fn is_free(client: &Client, key: &str) {
    until(&format!("{key} is free"), || async {
        match client.get_fresh(key).await {
            Ok(info) if !info.held => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

pub async fn waits_for(client: &Client, key: &str, calls: u64) {
    until(&format!("{calls} calls wait for {key}"), || async {
        match client.get_fresh(key).await {
            Ok(info) if info.queue_length == calls => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// The loss of a lock, which comes soon.
pub async fn lost(lock: &locksidecar::Lock) -> Error {
    within("the loss", lock.lost()).await
}

pub type Done = Result<()>;

/// An error of an app.
#[derive(Debug)]
pub enum App {
    Own,
    Locks(Error),
}

impl From<Error> for App {
    fn from(e: Error) -> App {
        App::Locks(e)
    }
}
