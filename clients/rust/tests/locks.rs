//! What the calls do, against a real sidecar.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{is_free, lost, start, waits_for, within, App};
use locksidecar::{Bind, Error, Mode, Options, Outcome, Query, Release, Scope};
use serde::{Deserialize, Serialize};
use serde_json::json;

async fn nothing(_: locksidecar::Lock) -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
async fn one_lock() {
    let (sidecar, client) = start();
    let other = sidecar.client();
    let first = client
        .lock("report:daily", Options::new(), |lock| {
            let other = other.clone();
            async move {
                assert!(other.try_acquire("report:daily", Options::new()).await?.is_none());
                let e = other.acquire("report:daily", Options::new().wait(Duration::ZERO)).await.unwrap_err();
                assert!(matches!(&e, Error::LockHeld(p) if p.key == "report:daily") && e.is_held(), "{e:?}");
                assert!(e.to_string().contains("the holder is pod \""), "{e}");
                let e = other.acquire("report:daily", Options::new().wait(Duration::from_millis(20))).await.unwrap_err();
                assert!(matches!(&e, Error::WaitTimeout(p) if p.waited >= Duration::from_millis(20)) && e.is_held(), "{e:?}");
                Ok::<_, Error>(lock.token())
            }
        })
        .await
        .unwrap();
    let lock = other.acquire("report:daily", Options::new()).await.unwrap();
    assert!(lock.token() > first && lock.is_held() && lock.acquired_at().is_some() && lock.session().is_some());
    assert!(lock.release().await.unwrap().free);
    assert!(lock.release().await.unwrap().free, "again: the same");
    assert!(!lock.is_held() && lock.loss().is_none());
    assert!(matches!(lock.check().await, Err(Error::NotHolder(_))));
}

#[tokio::test]
async fn an_error_of_the_work_is_returned() {
    let (_sidecar, client) = start();
    let failed = client.lock("k", Options::new(), |_| async { Err::<(), App>(App::Own) }).await;
    assert!(matches!(failed, Err(App::Own)));
    is_free(&client, "k").await;
}

// Proves: client loss
/// A loss ends the work at its `await`, and a block without its lock ends with an error.
#[tokio::test]
async fn a_loss_reaches_the_code() {
    let (sidecar, client) = start();
    let ended = client.lock("k", Options::new(), |_| {
        sidecar.lose("k");
        std::future::pending::<Result<(), Error>>()
    });
    let e: Error = within("the end of the work", ended).await.unwrap_err();
    assert!(matches!(&e, Error::LockLost(p) if p.reason == "forced" && p.key == "k" && p.token.is_some()), "{e:?}");
    let guard = client.acquire("k", Options::new()).await.unwrap();
    sidecar.lose("k");
    let e = lost(&guard).await;
    assert_eq!((e.reason(), e.problem().token), ("forced", Some(guard.token())));
    assert!(matches!(guard.loss(), Some(Error::LockLost(_))) && !guard.is_held());
    assert!(matches!(guard.release().await, Err(Error::LockLost(_))));
    assert!(matches!(guard.check().await, Err(Error::LockLost(_))));
    // Work that has ended without an await after the loss ends with the loss.
    let e = client
        .lock("k", Options::new(), |lock| {
            let sidecar = &sidecar;
            async move {
                sidecar.lose("k");
                while lock.loss().is_none() {
                    std::thread::yield_now(); // it never awaits
                }
                Ok::<(), Error>(())
            }
        })
        .await
        .unwrap_err();
    assert!(matches!(e, Error::LockLost(_)), "{e:?}");
    let e = within(
        "the end",
        client.lock_many(["a", "b"], Options::new(), |_| {
            sidecar.lose("b");
            std::future::pending::<Result<(), Error>>()
        }),
    )
    .await
    .unwrap_err();
    assert!(matches!(&e, Error::LockLost(p) if p.key == "b"), "{e:?}");
    is_free(&client, "a").await;
}

#[tokio::test]
async fn several_keys_and_shares() {
    let (sidecar, client) = start();
    let guards = client.acquire_many(["b", "a"], Options::new()).await.unwrap();
    assert!(guards.len() == 2 && guards[0].key() == "b" && guards.of("a").is_some() && guards.of("z").is_none());
    let e = sidecar.client().acquire_many(["c", "a"], Options::new().wait(Duration::ZERO)).await.unwrap_err();
    assert_eq!(e.problem().key, "a");
    guards.release().await.unwrap();

    let (first, second) = (client.shared("doc", Options::new()).await.unwrap(), client.shared("doc", Options::new()).await.unwrap());
    let e = client.acquire("doc", Options::new().wait(Duration::ZERO)).await.unwrap_err();
    assert!(matches!(&e, Error::LockHeld(p) if p.mode == Some(Mode::Shared) && p.holders_count == 2), "{e:?}");
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = client.acquire("doc", Options::new()).await.unwrap();
    assert_eq!(writer.downgrade().await.unwrap().mode, Mode::Shared);
    assert_eq!(writer.mode(), Mode::Shared);
    client.shared("doc", Options::new()).await.unwrap().release().await.unwrap();
    writer.release().await.unwrap();

    let gpu = client.semaphore("gpu", 2);
    let (one, two) = (gpu.acquire(Options::new()).await.unwrap(), gpu.acquire(Options::new()).await.unwrap());
    assert_eq!((one.slot(), two.slot(), one.limit()), (Some(0), Some(1), Some(2)));
    assert!(gpu.try_acquire(Options::new()).await.unwrap().is_none());
    let e = client.semaphore("gpu", 3).acquire(Options::new()).await.unwrap_err();
    assert!(matches!(&e, Error::LimitMismatch(p) if p.limit == Some(2)), "{e:?}");
}

#[tokio::test]
async fn work_is_done_once() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Report {
        rows: u32,
    }
    let (_sidecar, client) = start();
    let (runs, finish) = (Arc::new(AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let (client, runs, finish) = (client.clone(), runs.clone(), finish.clone());
            tokio::spawn(async move {
                client
                    .once("report", Options::new(), |_| async move {
                        runs.fetch_add(1, Ordering::SeqCst);
                        finish.notified().await;
                        Ok::<_, Error>(Report { rows: 42 })
                    })
                    .await
            })
        })
        .collect();
    waits_for(&client, "report", 4).await;
    finish.notify_one();
    for call in calls {
        assert_eq!(within("the result", call).await.unwrap().unwrap(), Report { rows: 42 });
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let failed = client.once("report", Options::new(), |_| async { Err::<u32, App>(App::Own) }).await;
    assert!(matches!(failed, Err(App::Own)));
    let e = client.once("report", Options::new(), |_| async { Ok::<_, Error>("x".repeat(5000)) }).await.unwrap_err();
    assert!(matches!(e, Error::TooLarge(_)), "{e:?}");
    is_free(&client, "report").await;
}

// Proves: client leader
#[tokio::test]
async fn a_leader_leads_again() {
    let (sidecar, client) = start();
    let (began, mut terms) = tokio::sync::mpsc::channel(1);
    let leads = tokio::spawn({
        let client = client.clone();
        async move {
            client
                .lead("leader", Options::new().data("web-1"), |lock| {
                    let began = began.clone();
                    async move {
                        began.send(lock).await.unwrap();
                        std::future::pending::<Result<(), Error>>().await
                    }
                })
                .await
        }
    });
    let mut watch = client.watch_leader("leader");
    let first = within("a term", terms.recv()).await.unwrap();
    assert_eq!(client.leader("leader").await.unwrap(), "web-1");
    while within("the leader", watch.next()).await.unwrap().unwrap() != "web-1" {}
    client.stop("leader", "deploy").await.unwrap();
    let second = within("a second term", terms.recv()).await.unwrap();
    assert_eq!(first.stop_request().unwrap().reason.as_deref(), Some("deploy"));
    assert!(second.token() > first.token() && first.released().is_some());
    sidecar.lose("leader");
    let third = within("a third term", terms.recv()).await.unwrap();
    sidecar.kill();
    lost(&third).await;
    sidecar.run();
    let fourth = within("a term after a restart", terms.recv()).await.unwrap();
    assert!(fourth.is_held());
    leads.abort();
    is_free(&client, "leader").await;
    client.lead("leader", Options::new(), nothing).await.unwrap();
    let failed = client.lead("leader", Options::new(), |_| async { Err::<(), App>(App::Own) }).await;
    assert!(matches!(failed, Err(App::Own)));
}

#[tokio::test]
async fn reads() {
    let (sidecar, client) = start();
    let lock = client.acquire("job:a/b?c", Options::new().data(json!({"n": 1})).owner("me")).await.unwrap();
    let info = client.get_fresh(lock.key()).await.unwrap();
    assert!(info.held && info.mine && info.token == Some(lock.token()) && info.kind == "job" && info.raw["state"] == "held", "{info:?}");
    let holder = info.holder.unwrap();
    assert_eq!((holder.owner.as_deref(), &holder.data), (Some("me"), &json!({"n": 1})));
    lock.update("new").await.unwrap();
    let mut held = Vec::new();
    for n in ["a", "b", "c", "d", "e"] {
        held.push(client.acquire(&format!("list:{n}"), Options::new()).await.unwrap());
    }
    let listed = client.locks(Query::new().page_size(2).scope(Scope::Session)).all().await.unwrap();
    assert_eq!(listed.iter().map(|info| info.key.as_str()).collect::<Vec<_>>(), ["job:a/b?c", "list:a", "list:b", "list:c", "list:d", "list:e"]);
    assert_eq!(client.locks(Query::new().kind("list").prefix("list:d")).all().await.unwrap().len(), 1);
    let waits = tokio::spawn({
        let other = sidecar.client();
        async move { other.acquire("job:a/b?c", Options::new()).await.map(drop) }
    });
    waits_for(&client, lock.key(), 1).await;
    let waiters = client.waiters_of(lock.key()).all().await.unwrap();
    assert!(waiters.len() == 1 && waiters[0].position == 1 && waiters[0].key == lock.key(), "{waiters:?}");
    assert_eq!(client.waiters(Query::new()).all().await.unwrap().len(), 1);
    waits.abort();
    waits_for(&client, lock.key(), 0).await;

    let description = client.describe().await.unwrap();
    assert!(description.has("shared") && client.call("GET", "/v1", &json!(null)).await.unwrap()["version"] == description.version.as_str());
    assert!(matches!(client.stop("free", "").await, Err(Error::NotHeld(_))));
    assert!(matches!(client.force_release("free").await, Err(Error::NotHeld(_))));
    for wrong in [
        client.acquire("", Options::new()).await.map(drop),
        client.acquire("k", Options::new().data(f64::NAN).data(std::collections::HashMap::from([((1, 2), 3)]))).await.map(drop),
        client.acquire("k", Options::new().request_id("")).await.map(drop),
        client.acquire("k", Options::new().owner("")).await.map(drop),
        client.acquire_many(Vec::<String>::new(), Options::new()).await.map(drop),
        client.call("GET", "/v1 HTTP/1.1\r\nX: y", &json!(null)).await.map(drop),
    ] {
        assert!(matches!(wrong, Err(Error::InvalidRequest(_))), "{wrong:?}");
    }
}

/// A lock that is bound to its TTL outlives the session, and ends by the clock here if nobody extends it.
#[tokio::test]
async fn a_lock_with_a_time() {
    let (sidecar, client) = start();
    let bound = |seconds| Options::new().bind_to_ttl().ttl(Duration::from_secs(seconds));
    let lock = client.acquire("k", bound(60)).await.unwrap();
    assert!(lock.extend(Duration::from_secs(120)).await.unwrap().expires_in > Duration::from_secs(100));
    assert!(lock.session().is_none() && lock.bind() == Bind::Ttl);
    let other = sidecar.client();
    other.check("k", lock.token()).await.unwrap();
    other.extend("k", lock.token(), Duration::from_secs(180)).await.unwrap();
    other.update("k", lock.token(), 1).await.unwrap();
    assert!(other.release("k", lock.token(), Release::new()).await.unwrap().free);
    assert!(matches!(lock.check().await, Err(Error::NotHolder(_))));

    let short = client.acquire("short", Options::new().bind_to_ttl().ttl(Duration::from_millis(500))).await.unwrap();
    assert_eq!(lost(&short).await.reason(), "expired");

    let id = "0b8e7d3c-7d2e-4a53-9e52-0123456789ab";
    let first = client.acquire("id", bound(60).request_id(id)).await.unwrap();
    let again = client.acquire("id", bound(60).request_id(id)).await.unwrap();
    assert_eq!(first.token(), again.token());
    assert!(client.release_request("id", id).await.unwrap().free);
    let kept = client.acquire("kept", bound(60)).await.unwrap();
    client.close().await;
    assert!(other.get_fresh("kept").await.unwrap().held, "it has ended with its client");
    drop(kept);
}

#[tokio::test]
async fn a_request_to_stop_reaches_the_holder() {
    let (_sidecar, client) = start();
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let told = reasons.clone();
    let options = Options::new().on_stop(move |request| {
        told.lock().unwrap().push(request.reason.unwrap());
        panic!("of the app"); // it must not end the session
    });
    let lock = client.acquire("k", options).await.unwrap();
    assert!(lock.stop_request().is_none());
    client.stop("k", "one").await.unwrap();
    assert_eq!(within("the request", lock.stopping()).await.reason.as_deref(), Some("one"));
    client.stop_holder("k", lock.token(), "two").await.unwrap();
    common::until("both are told", || async {
        if *reasons.lock().unwrap() == ["one", "two"] {
            Ok(())
        } else {
            Err(String::new())
        }
    })
    .await;
    let request = lock.check().await.unwrap().stopping.unwrap();
    assert!(request.reason.as_deref() == Some("two") && request.requested_at.is_some(), "{request:?}");
    assert!(lock.is_held());
}

#[tokio::test]
async fn events_of_a_key() {
    let (sidecar, client) = start();
    let mut events = client.events("k");
    let state = within("the state", events.next()).await.unwrap().unwrap();
    assert!(state.kind == "state" && !state.lock.unwrap().held && state.key == "k");
    let lock = client.acquire("k", Options::new().data(1)).await.unwrap();
    let acquired = within("the grant", events.next()).await.unwrap().unwrap();
    assert_eq!((acquired.kind.as_str(), acquired.token), ("acquired", Some(lock.token())));
    lock.release_with(Release::new().result(json!({"rows": 3}))).await.unwrap();
    let released = within("the release", events.next()).await.unwrap().unwrap();
    assert_eq!((released.kind.as_str(), released.outcome, released.result), ("released", Some(Outcome::Success), json!({"rows": 3})));
    sidecar.kill();
    sidecar.run();
    assert_eq!(within("the state after a restart", events.next()).await.unwrap().unwrap().kind, "state");
    // It is a Stream, too.
    let client = client.clone();
    let found = within("a stream", futures_util::StreamExt::next(&mut client.events("k"))).await;
    assert_eq!(found.unwrap().unwrap().kind, "state");
    client.close().await;
    assert!(within("the end", events.next()).await.unwrap().unwrap_err().is_closed());
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn close_ends_all() {
    let (sidecar, client) = start();
    let other = sidecar.client();
    let lock = client.acquire("k", Options::new()).await.unwrap();
    let blocked = other.acquire("b", Options::new()).await.unwrap();
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.acquire("b", Options::new()).await.map(drop) }
    });
    waits_for(&other, "b", 1).await;
    client.close().await;
    assert!(within("the wait", waits).await.unwrap().unwrap_err().is_closed());
    assert_eq!(lost(&lock).await.reason(), "closed");
    assert!(!other.get_fresh("k").await.unwrap().held, "the lock is held after close");
    let e = client.acquire("k", Options::new()).await.unwrap_err();
    assert!(e.is_closed() && matches!(e, Error::SessionEnded(_)));
    client.close().await;
    blocked.release().await.unwrap();
}
