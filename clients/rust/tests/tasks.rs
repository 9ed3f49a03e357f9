//! Many tasks, nested use, hangs, restarts, processes.

mod common;
#[path = "common/store.rs"]
mod store;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{is_free, lost, start, until, waits_for, within};
use locksidecar::{apart, testing::Sidecar, Client, Error, Options};
use rand::seq::SliceRandom;

async fn nothing(_: locksidecar::Lock) -> Result<(), Error> {
    Ok(())
}

// Proves: client self wait
/// A call that would wait for the lock of its own code is refused at once.
#[tokio::test]
async fn nested_use_is_refused() {
    fn refused<T: std::fmt::Debug>(result: Result<T, Error>) {
        assert!(matches!(&result, Err(Error::InvalidRequest(p)) if p.key == "k" && p.detail.contains("reentrant")), "{result:?}");
    }
    let (_sidecar, client) = start();
    let c = &client;
    let nested = c.lock("k", Options::new(), |lock| async move {
        refused(c.lock("k", Options::new(), nothing).await);
        refused(c.lock("other", Options::new(), |_| c.lock("k", Options::new(), nothing)).await);
        refused(lock.scope(c.acquire("k", Options::new())).await);
        refused(c.shared("k", Options::new()).await);
        refused(c.acquire_many(["a", "k"], Options::new()).await);
        refused(c.lead("k", Options::new(), nothing).await);
        refused(c.lock("k", Options::new().reentrant(), nothing).await); // only if both have it
        assert!(c.try_acquire("k", Options::new()).await?.is_none());
        assert!(matches!(c.acquire("k", Options::new().wait(Duration::from_millis(10))).await, Err(Error::WaitTimeout(_))));
        Ok::<_, Error>(())
    });
    within("the refusals", nested).await.unwrap();
    let gpu = &client.semaphore("gpu", 1);
    let full = within("a refusal", gpu.lock(Options::new(), |_| gpu.lock(Options::new(), nothing))).await;
    assert!(matches!(&full, Err(Error::InvalidRequest(p)) if p.detail.contains("permits")), "{full:?}");
    let two = &client.semaphore("two", 2);
    within("two permits", two.lock(Options::new(), |_| two.lock(Options::new(), nothing))).await.unwrap();
    within("two shares", c.lock("doc", Options::new().shared(), |_| c.lock("doc", Options::new().shared(), nothing))).await.unwrap();
    // A released lock is nobody's. Work that the holder does not wait for may wait for the lock.
    let again = c.lock("k", Options::new(), |lock| async move {
        lock.release().await?;
        c.lock("k", Options::new(), nothing).await
    });
    within("a lock after a release", again).await.unwrap();
    let (held, later) = (c.lock("k", Options::new(), |_| waits(c)), c.lock("k", Options::new(), nothing));
    async fn waits(client: &Client) -> Result<(), Error> {
        tokio::select! {
            biased;
            later = apart(client.acquire("k", Options::new())) => panic!("{later:?} under the lock"),
            () = waits_for(client, "k", 1) => Ok(()),
        }
    }
    within("the outer lock", held).await.unwrap();
    within("a lock after it", later).await.unwrap();
}

#[tokio::test]
async fn reentrant_locks_are_entered_again() {
    let (_sidecar, client) = start();
    let (c, again) = (&client, || Options::new().reentrant());
    let work = c.lock("k", again(), |outer| async move {
        let token = outer.token();
        let inner = c.lock("k", again(), |inner| async move { Ok::<_, Error>((inner.reentry(), inner.token())) }).await?;
        assert_eq!(inner, (2, token));
        assert_eq!(outer.check().await?.reentry, 1);
        let inner = c.acquire("k", again()).await?;
        assert!(!inner.release().await?.free);
        inner.release().await?; // once only
        drop(c.acquire("k", again()).await?); // a guard releases its own entry
                                              // Other code is another owner.
        assert!(apart(c.try_acquire("k", again())).await?.is_none());
        until("one entry is left", || async {
            if outer.check().await.unwrap().reentry == 1 {
                Ok(())
            } else {
                Err(String::new())
            }
        })
        .await;
        Ok::<_, Error>(())
    });
    within("the entries", work).await.unwrap();
    is_free(c, "k").await;
    let named = || again().owner("job-7");
    let (one, two) = (c.acquire("k", named()).await.unwrap(), c.acquire("k", named()).await.unwrap());
    assert!(!one.release().await.unwrap().free);
    assert!(two.release().await.unwrap().free);
}

// Proves: client groups
/// Tasks of one client that want overlapping keys wait for each other.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_wait_for_each_other() {
    let (_sidecar, client) = start();
    let holders: Arc<Mutex<HashMap<String, i32>>> = Arc::default();
    let tasks: Vec<_> = (0..6)
        .map(|n| {
            let (client, holders) = (client.clone(), holders.clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    let mut keys = ["acc:1", "acc:2", "acc:3", "acc:4"];
                    keys.shuffle(&mut rand::rng());
                    let mine = &keys[..1 + n % 3];
                    let change = |by| {
                        let mut holders = holders.lock().unwrap();
                        for key in mine {
                            let n = holders.entry(key.to_string()).or_default();
                            *n += by;
                            assert!(*n <= 1, "{n} hold {key}");
                        }
                    };
                    let held = client.lock_many(mine.iter().copied(), Options::new(), |_| async {
                        change(1);
                        tokio::task::yield_now().await;
                        change(-1);
                        Ok::<_, Error>(())
                    });
                    held.await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        within("all have had their keys", task).await.unwrap();
    }
}

/// Many tasks of two clients want one key: one holds it at a time, and each gets it.
#[tokio::test(flavor = "multi_thread")]
async fn one_holds_at_a_time() {
    let (sidecar, client) = start();
    let other = sidecar.client();
    let inside = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let (client, inside) = (if n % 2 == 0 { client.clone() } else { other.clone() }, inside.clone());
            tokio::spawn(async move {
                for _ in 0..10 {
                    let guard = client.acquire("k", Options::new()).await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if n % 3 == 0 {
                        drop(guard);
                    } else {
                        guard.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        within("all have had the lock", task).await.unwrap();
    }
}

// Proves: client lost answer
/// A release that has no answer returns, goes on by itself, and leaves the object right.
#[tokio::test]
async fn a_release_without_an_answer() {
    let sidecar = Sidecar::start(&[]);
    let client = sidecar.client_with(Client::builder().timeout(Duration::from_millis(100)));
    let lock = client.acquire("k", Options::new()).await.unwrap();
    sidecar.hang();
    let e = lock.release().await.unwrap_err();
    assert!(matches!(e, Error::Unavailable(_)) && e.code() == "timeout", "{e:?}");
    assert!(lock.released().is_none(), "it says that it is released");
    sidecar.resume();
    is_free(&sidecar.client(), "k").await;
    assert!(lock.release().await.unwrap().free); // what became of it
    assert!(lock.released().unwrap().free);
    client.lock("k", Options::new(), nothing).await.unwrap();
}

// Proves: client own clock
/// A sidecar that hangs tells nothing. The lock is lost at the end of its lease, by the clock of the client. A shorter hang loses nothing.
#[tokio::test]
async fn a_hang() {
    let sidecar = Sidecar::start(&[("TTL", "2s")]);
    let client = sidecar.client();
    let lock = client.acquire("k", Options::new()).await.unwrap();
    sidecar.hang();
    assert!(tokio::time::timeout(Duration::from_millis(500), lock.lost()).await.is_err(), "lost too early");
    sidecar.resume();
    lock.check().await.unwrap();
    let began = Instant::now();
    sidecar.hang();
    let e = lost(&lock).await;
    assert!(began.elapsed() <= Duration::from_secs(2), "lost after {:?}, later than the lease", began.elapsed());
    assert!(e.reason() == "expired" && e.problem().detail.contains("does not answer"), "{e:?}");
    sidecar.resume();
    is_free(&sidecar.client(), "k").await;
    client.lock("k", Options::new(), nothing).await.unwrap();
}

/// An app that blocks its runtime does not delay the news: the client's thread has it.
#[tokio::test]
async fn a_blocked_runtime_does_not_delay_the_news() {
    let (sidecar, client) = start();
    let lock = client.acquire("k", Options::new()).await.unwrap();
    sidecar.lose("k");
    let began = Instant::now();
    while lock.loss().is_none() {
        assert!(began.elapsed() < common::PATIENCE);
        std::thread::sleep(Duration::from_millis(1)); // this thread is the whole runtime
    }
}

/// A wait goes on through a restart of the sidecar; a held lock is lost.
#[tokio::test]
async fn a_restart() {
    let sidecar = Sidecar::start(&[]);
    let outages: Arc<Mutex<Vec<Error>>> = Arc::default();
    let told = outages.clone();
    let client = sidecar.client_with(Client::builder().on_outage(move |e| told.lock().unwrap().push(e.clone())));
    let lock = sidecar.client().acquire("k", Options::new()).await.unwrap();
    client.connect().await.unwrap();
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.lock("k", Options::new(), nothing).await }
    });
    waits_for(&sidecar.client(), "k", 1).await;
    sidecar.kill();
    assert_eq!(lost(&lock).await.reason(), "disconnected");
    until("the outage is told", || async {
        if outages.lock().unwrap().is_empty() {
            Err(String::new())
        } else {
            Ok(())
        }
    })
    .await;
    sidecar.run();
    within("the wait", waits).await.unwrap().unwrap();
    let outages = outages.lock().unwrap().clone();
    assert!(outages.len() == 1 && matches!(outages[0], Error::Unavailable(_) | Error::SessionEnded(_)), "{outages:?}");
    sidecar.kill();
    let e = sidecar.client_with(Client::builder().reconnect(Duration::ZERO)).acquire("k", Options::new()).await.unwrap_err();
    assert!(e.code() == "unreachable" && e.to_string().contains(&format!("no sidecar listens at {}", sidecar.socket().display())), "{e}");
    assert!(std::error::Error::source(&e).is_some());
}

/// A lock goes from one sidecar to the other, whether they keep released keys or not, and never to both.
#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars() {
    let server = store::Store::start("redis");
    for keep in ["0", "200ms"] {
        let settings = [("STORE_URL", server.url.as_str()), ("KEEP", keep)];
        let sidecars = [Sidecar::start(&settings), Sidecar::start(&settings)];
        let inside = &AtomicUsize::new(0);
        let [one, two] = sidecars.each_ref().map(|sidecar| async move {
            let client = sidecar.client();
            let mut last = 0;
            for n in 0..50 {
                let guard = client.acquire("k", Options::new()).await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                assert!(guard.token() > last, "token {} after {last}", guard.token());
                last = guard.token();
                inside.fetch_sub(1, Ordering::SeqCst);
                if n % 2 == 0 {
                    guard.release().await.unwrap();
                }
            }
        });
        within("both have had their turns", async { tokio::join!(one, two) }).await;
    }
}

/// A test of this file, as a process of its own.
fn program(sidecar: &Sidecar, name: &str, limit: &str) -> Command {
    let run = format!("{limit} exec \"$0\" --exact {name} --ignored --nocapture");
    let mut command = Command::new("sh");
    command.args(["-c", &run]).arg(std::env::current_exe().unwrap()).env("LOCKSIDECAR_SOCKET", sidecar.socket());
    command
}

/// Runs a test of this file in a process of its own.
fn child(sidecar: &Sidecar, name: &str, limit: &str) -> String {
    let out = program(sidecar, name, limit).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && text.contains("1 passed"), "{text}");
    text
}

// Proves: client descriptors
/// Calls that wait take all descriptors, and the release that ends their waits gets through.
#[test]
fn a_release_gets_through_without_descriptors() {
    let sidecar = Sidecar::start(&[]);
    println!("{}", child(&sidecar, "starved", "ulimit -n 40;"));
}

#[test]
#[ignore = "a_release_gets_through_without_descriptors runs it, in a process of its own"]
fn starved() {
    const MOST: usize = 40;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::builder().reconnect(Duration::from_millis(500)).build();
        let lock = client.acquire("k", Options::new()).await.unwrap();
        let (done, mut results) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..4 * MOST {
            let (client, done) = (client.clone(), done.clone());
            tokio::spawn(async move {
                let result = match client.acquire("k", Options::new()).await {
                    Ok(guard) => guard.release().await.map(drop),
                    Err(e) => Err(e),
                };
                done.send(result).unwrap();
            });
        }
        let mut named = 0;
        for _ in 0..2 * MOST {
            // Those without a connection.
            let e = within("a call without a descriptor", results.recv()).await.unwrap().unwrap_err();
            assert!(matches!(e, Error::Unavailable(_)) && e.to_string().contains("ulimit -n"), "{e}");
            named += 1;
        }
        lock.check().await.unwrap();
        lock.release().await.unwrap();
        let mut granted = 0;
        for _ in 0..2 * MOST {
            match within("a call that waited", results.recv()).await.unwrap() {
                Ok(()) => granted += 1,
                Err(e) => assert!(matches!(e, Error::Unavailable(_)), "{e}"),
            }
        }
        client.close().await;
        assert!(granted > 0);
        println!("{} calls had no descriptor, {granted} waited and got the lock", named + 2 * MOST - granted);
    });
}

// Proves: client own clock
/// The question about a lock gets no descriptor, because the calls that hang have all.
#[test]
fn a_loss_is_told_in_time_without_descriptors() {
    let sidecar = Sidecar::start(&[]);
    let mut program = program(&sidecar, "hanging", "ulimit -n 40;").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("acquired")));
    sidecar.hang();
    drop(program.stdin.take());
    let text = lines.collect::<Vec<_>>().join("\n");
    assert!(program.wait().unwrap().success(), "{text}");
}

/// Has a lock when its input ends.
#[test]
#[ignore = "a_loss_is_told_in_time_without_descriptors runs it, in a process of its own"]
fn hanging() {
    const MOST: usize = 40;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::builder().timeout(Duration::from_secs(60)).build();
        let acquired = Instant::now();
        let lock = client.acquire("k", Options::new().ttl(Duration::from_secs(2))).await.unwrap();
        println!("acquired");
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
        for _ in 0..2 * MOST {
            let client = client.clone();
            tokio::spawn(async move { client.get("k").await.map(drop) });
        }
        let lost = within("the loss", lock.lost()).await;
        let took = acquired.elapsed();
        assert!(matches!(&lost, Error::LockLost(p) if p.reason == "expired"), "{lost}");
        assert!((Duration::from_millis(1500)..Duration::from_secs(20)).contains(&took), "after {took:?}");
    });
}

// Proves: client own clock
/// The app has all descriptors. The client asks on a connection that it has kept.
#[test]
fn a_lock_stays_without_descriptors() {
    child(&Sidecar::start(&[]), "crowded", "ulimit -n 40;");
}

#[tokio::test]
#[ignore = "a_lock_stays_without_descriptors runs it, in a process of its own"]
async fn crowded() {
    let client = Client::new();
    let lock = client.acquire("k", Options::new().ttl(Duration::from_secs(4))).await.unwrap();
    let mut files = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        files.push(file);
    }
    let lost = tokio::time::timeout(Duration::from_secs(6), lock.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    lock.check().await.unwrap();
    lock.release().await.unwrap();
}

/// A thread that cannot be started is the error of a call, and no panic in the app's task.
#[test]
fn a_client_without_its_thread() {
    // No thread gets such a stack.
    child(&Sidecar::start(&[]), "has_no_thread", "export RUST_MIN_STACK=70368744177664;");
}

#[tokio::test]
#[ignore = "a_client_without_its_thread runs it, in a process of its own"]
async fn has_no_thread() {
    let e = Client::new().connect().await.unwrap_err();
    assert!(matches!(e, Error::Unavailable(_)) && e.to_string().contains("thread"), "{e}");
}

/// A process that ends has no locks any more, also if it forgets its guards.
#[tokio::test]
async fn a_process_that_ends_frees_its_locks() {
    let (sidecar, client) = start();
    child(&sidecar, "holder", "");
    is_free(&client, "k").await;
}

#[tokio::test]
#[ignore = "a_process_that_ends_frees_its_locks runs it, in a process of its own"]
async fn holder() {
    std::mem::forget(Client::new().acquire("k", Options::new()).await.unwrap());
}

/// The thread of a client ends with its last handle.
#[test]
fn a_dropped_client_leaves_no_thread() {
    let sidecar = Sidecar::start(&[]);
    child(&sidecar, "ends_its_thread", "");
}

#[tokio::test]
#[ignore = "a_dropped_client_leaves_no_thread runs it, in a process of its own"]
async fn ends_its_thread() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.filter(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "locksidecar")).count()
    };
    let client = Client::new();
    client.connect().await.unwrap();
    let (events, guard) = (client.events("k"), client.acquire("k", Options::new()).await.unwrap());
    let waits = client.acquire("k", Options::new());
    assert!(tokio::time::timeout(Duration::from_millis(10), waits).await.is_err());
    drop(client);
    assert_eq!(threads(), 1);
    drop(events);
    guard.check().await.unwrap();
    drop(guard);
    until("the thread has ended", || async {
        if threads() == 0 {
            Ok(())
        } else {
            Err(String::new())
        }
    })
    .await;
    is_free(&Client::new(), "k").await;
}
