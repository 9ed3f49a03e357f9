//! The examples of README.md.

mod common;

use std::sync::atomic::{AtomicI64, Ordering};

use common::start;
use tokio::task::JoinHandle;

static WRITTEN: AtomicI64 = AtomicI64::new(0);

async fn write(token: i64) -> Result<(), Error> {
    WRITTEN.store(token, Ordering::SeqCst);
    Ok(())
}

use locksidecar::{testing::Sidecar, Error};

/// Returns when the report has its lock.
async fn start_report(client: locksidecar::Client) -> JoinHandle<Result<(), Error>> {
    let (begun, begins) = tokio::sync::oneshot::channel();
    let report = tokio::spawn(async move {
        let work = |_| async move {
            begun.send(()).unwrap();
            std::future::pending().await
        };
        client.lock("report:daily", locksidecar::Options::new(), work).await
    });
    begins.await.unwrap();
    report
}

#[tokio::test]
async fn the_report_ends_when_its_lock_is_lost() {
    let sidecar = Sidecar::start(&[]);
    let report = start_report(sidecar.client()).await; // holds the lock report:daily
    sidecar.lose("report:daily"); // or kill, hang, resume, stop, run
    assert!(matches!(report.await.unwrap(), Err(Error::LockLost(_))));
}

async fn one_lock() -> Result<(), Error> {
    use locksidecar::{Client, Options};
    use std::time::Duration;

    let client = Client::new(); // one for each process; clones share it
    let options = Options::new().wait(Duration::from_secs(5));
    client.lock("report:daily", options, |lock| async move { write(lock.token()).await }).await?;

    let guard = client.acquire("report:daily", Options::new()).await?;
    tokio::select! {
        lost = guard.lost() => return Err(lost),
        written = write(guard.token()) => written?,
    }
    guard.release().await?;
    Ok(())
}

#[tokio::test]
async fn the_first_lock() {
    let (sidecar, _client) = start();
    // Nothing else in this process reads or writes a variable meanwhile but the search for the sidecar.
    std::env::set_var("LOCKSIDECAR_SOCKET", sidecar.socket());
    one_lock().await.unwrap();
    assert!(WRITTEN.load(Ordering::SeqCst) > 0);
}

/// Each line of Rust in README.md stands in this file, where it runs.
#[test]
fn each_line_runs() {
    let readme = include_str!("../README.md");
    let here = include_str!("readme.rs");
    let mut lines = 0;
    for block in readme.split("```rust\n").skip(1) {
        for line in block.split("```").next().unwrap().lines().map(str::trim) {
            lines += 1;
            assert!(here.lines().any(|have| have.trim() == line), "it does not run: {line}");
        }
    }
    assert!(lines > 20, "{lines} lines");
}
