//! The examples, against a real sidecar.

#[path = "../examples/axum.rs"]
mod axum_example;
mod common;
#[path = "../examples/cron.rs"]
mod cron_example;

use std::sync::{Arc, Mutex};

use common::{is_free, start, until, within};
use locksidecar::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_cron_scheduler::JobScheduler;

async fn post(address: std::net::SocketAddr) -> String {
    let mut conn = TcpStream::connect(address).await.unwrap();
    conn.write_all(b"POST /reports/daily HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    conn.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn axum() {
    let (sidecar, client) = start();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serves = tokio::spawn(async move { ::axum::serve(listener, axum_example::app(client)).await });
    let (one, two) = within("both reports", async { tokio::join!(post(address), post(address)) }).await;
    assert!(one.contains("200 OK") && two.contains("200 OK") && one.contains("\"token\":"), "{one}\n{two}");
    assert_ne!(one.rsplit('{').next(), two.rsplit('{').next(), "two reports with one token");
    let observer = sidecar.client();
    let held = observer.acquire("report:daily", Options::new()).await.unwrap();
    let refused = within("a refusal", post(address)).await;
    assert!(refused.contains("409 Conflict") && refused.contains("the holder is pod"), "{refused}");
    held.release().await.unwrap();
    // A browser that goes away in the middle leaves no lock.
    let mut conn = TcpStream::connect(address).await.unwrap();
    conn.write_all(b"POST /reports/daily HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    until("the report is begun", || async {
        if observer.get_fresh("report:daily").await.unwrap().held {
            Ok(())
        } else {
            Err(String::new())
        }
    })
    .await;
    drop(conn);
    is_free(&observer, "report:daily").await;
    serves.abort();
}

#[tokio::test]
async fn cron() {
    let (sidecar, _client) = start();
    let runs: Arc<Mutex<Vec<(usize, i64)>>> = Arc::default();
    let mut schedulers = Vec::new();
    for instance in 0..3 {
        let (scheduler, runs) = (JobScheduler::new().await.unwrap(), runs.clone());
        let job = cron_example::each_second(sidecar.client(), move |token| runs.lock().unwrap().push((instance, token))).unwrap();
        scheduler.add(job).await.unwrap();
        scheduler.start().await.unwrap();
        schedulers.push(scheduler);
    }
    let began = std::time::Instant::now();
    until("three runs", || async {
        if runs.lock().unwrap().len() >= 3 {
            Ok(())
        } else {
            Err(String::new())
        }
    })
    .await;
    let most = began.elapsed().as_secs() as usize + 2;
    for mut scheduler in schedulers {
        scheduler.shutdown().await.unwrap();
    }
    let runs = runs.lock().unwrap();
    assert!(runs.len() <= most, "{} runs by three instances within {most} seconds", runs.len());
    assert!(runs.windows(2).all(|two| two[0].1 < two[1].1), "{runs:?}");
}
