//! Futures and guards that are dropped, at each `await`: no lock stays, and no connection is used by two calls.

mod common;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use common::{is_free, start, until, waits_for, within};
use locksidecar::{testing::Sidecar, Client, Error, Options, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{watch, Semaphore};

/// Relays connections to a sidecar, and stops before one step: a connection that it accepts, or some bytes in either direction. So a call hangs at each of
/// its `await`s in turn.
struct Relay {
    socket: PathBuf,
    steps: Arc<AtomicUsize>,
    /// The step before which it stops.
    at: usize,
    /// It stands at this step.
    stopped: watch::Sender<bool>,
    go_on: Semaphore,
}

impl Relay {
    fn start(sidecar: &Path, at: usize) -> Arc<Relay> {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let socket = sidecar.with_file_name(format!("r{}.sock", LAST.fetch_add(1, Ordering::Relaxed)));
        let relay = Arc::new(Relay { socket, steps: Arc::default(), at, stopped: watch::Sender::new(false), go_on: Semaphore::new(0) });
        let listener = UnixListener::bind(&relay.socket).unwrap();
        let (of, sidecar) = (relay.clone(), sidecar.to_owned());
        tokio::spawn(async move {
            while let Ok((conn, _)) = listener.accept().await {
                tokio::spawn(of.clone().relay(conn, sidecar.clone()));
            }
        });
        relay
    }

    async fn relay(self: Arc<Self>, conn: UnixStream, sidecar: PathBuf) {
        self.step().await;
        let Ok(there) = UnixStream::connect(sidecar).await else { return };
        let ((mut from, mut back), (mut answers, mut to)) = (conn.into_split(), there.into_split());
        let (asks, tells) = (self.clone(), self);
        let up = async move {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(n @ 1..) = from.read(&mut buffer).await {
                asks.step().await;
                if to.write_all(&buffer[..n]).await.is_err() {
                    break;
                }
            }
        };
        let down = async move {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(n @ 1..) = answers.read(&mut buffer).await {
                tells.step().await;
                if back.write_all(&buffer[..n]).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! { // an end of either ends both, as a connection does
            () = up => {}
            () = down => {}
        }
    }

    async fn step(&self) {
        if self.steps.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            self.stopped.send_replace(true);
            self.go_on.acquire().await.unwrap().forget();
        }
    }

    fn client(&self) -> Client {
        Client::builder().socket(&self.socket).build()
    }
}

/// Runs a call, and drops it at each of its steps in turn. Each time the keys are free afterwards, and the client works.
async fn at_each_step<F, R, T>(keys: &[&str], connected: bool, call: F)
where
    F: Fn(Client) -> R,
    R: Future<Output = T>,
{
    let sidecar = Sidecar::start(&[]);
    let observer = sidecar.client();
    let mut at = 1;
    loop {
        let relay = Relay::start(sidecar.socket(), usize::MAX);
        let client = relay.client();
        if connected {
            client.lock("before", Options::new(), |_| async { Ok::<_, Error>(()) }).await.unwrap();
        }
        let before = if connected { relay.steps.load(Ordering::SeqCst) } else { 0 };
        drop(client);
        let relay = Relay::start(sidecar.socket(), before + at);
        let client = relay.client();
        if connected {
            client.lock("before", Options::new(), |_| async { Ok::<_, Error>(()) }).await.unwrap();
        }
        let mut stopped = relay.stopped.subscribe();
        let whole = {
            let running = std::pin::pin!(call(client.clone()));
            tokio::select! {
                biased;
                _ = stopped.wait_for(|is| *is) => false,
                _ = within("the call", running) => true,
            }
            // Here the call is dropped, and then the relay goes on.
        };
        relay.go_on.add_permits(1);
        for key in keys {
            is_free(&observer, key).await;
            within("the next call", client.lock(key, Options::new(), |_| async { Ok::<_, Error>(()) })).await.unwrap_or_else(|e| panic!("step {at}: {e}"));
        }
        if whole {
            break;
        }
        at += 1;
        assert!(at < 40, "{at} steps");
    }
    assert!(at > if connected { 2 } else { 6 }, "only {at} steps");
    println!("{at} steps");
}

// Proves: client interrupts
/// An acquire that is dropped at any step leaves no lock that nobody knows.
#[tokio::test]
async fn a_dropped_acquire_leaves_no_lock() {
    for connected in [false, true] {
        at_each_step(&["k"], connected, |client| async move { client.acquire("k", Options::new()).await.unwrap().release().await }).await;
        at_each_step(&["k"], connected, |client| async move { client.try_acquire("k", Options::new()).await.unwrap().unwrap().release().await }).await;
        let many = ["k", "l"];
        at_each_step(&many, connected, |client| async move { client.acquire_many(many, Options::new()).await.unwrap().release().await }).await;
        // Longer than the test, so nothing but a withdrawal ends it.
        let ttl = || Options::new().bind_to_ttl().ttl(Duration::from_secs(600));
        at_each_step(&["k"], connected, |client| async move { client.acquire("k", ttl()).await.unwrap().release().await }).await;
    }
}

/// The same for work: it is dropped, and then its lock is released.
#[tokio::test]
async fn dropped_work_leaves_no_lock() {
    at_each_step(&["k"], true, |client| async move { client.lock("k", Options::new(), |lock| async move { lock.check().await }).await }).await;
    at_each_step(
        &["k"],
        true,
        |client| async move { client.once("k", Options::new(), |lock| async move { lock.check().await.map(|status| status.token) }).await },
    )
    .await;
    at_each_step(&["k"], true, |client| async move { client.lead("k", Options::new(), |lock| async move { lock.check().await }).await }).await;
    at_each_step(&["k"], true, |client| async move { client.semaphore("k", 1).lock(Options::new(), |lock| async move { lock.update(1).await }).await }).await;
}

// Proves: client interrupts
/// Calls that are dropped after any time.
#[tokio::test]
async fn calls_are_dropped_at_any_time() {
    let (sidecar, client) = start();
    let observer = sidecar.client();
    let mut granted = 0;
    for i in 0..300 {
        let after = Duration::from_micros(rand::random_range(0..600));
        let timer = std::thread::spawn(move || std::thread::sleep(after));
        let late = async {
            while !timer.is_finished() {
                tokio::task::yield_now().await
            }
        };
        tokio::select! {
            biased;
            lock = client.acquire("k", Options::new()) => {
                granted += 1;
                lock.unwrap().release().await.unwrap();
            }
            () = late => {}
        }
        if i % 20 == 0 {
            is_free(&observer, "k").await;
        }
    }
    is_free(&observer, "k").await;
    println!("{granted} of 300 were granted");
    client.lock("k", Options::new(), |_| async { Ok::<_, Error>(()) }).await.unwrap();
}

/// A call that waits, and is dropped, leaves the queue. One that gets the lock at the same time gives it back.
#[tokio::test]
async fn a_dropped_wait_leaves_the_queue() {
    let (sidecar, client) = start();
    let other = sidecar.client();
    let held = client.acquire("k", Options::new()).await.unwrap();
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.acquire("k", Options::new()).await.map(drop) }
    });
    waits_for(&client, "k", 1).await;
    waiting.abort();
    waits_for(&client, "k", 0).await;
    for _ in 0..50 {
        let waiting = tokio::spawn({
            let other = other.clone();
            async move { other.acquire("k", Options::new()).await.map(drop) }
        });
        waits_for(&client, "k", 1).await;
        let released = tokio::spawn({
            let lock = held.handle();
            async move { lock.check().await }
        });
        waiting.abort();
        released.await.unwrap().unwrap();
    }
    held.release().await.unwrap();
    is_free(&client, "k").await;
}

/// A guard that is dropped releases its lock, and the client's next acquire does not find the key held by itself.
#[tokio::test]
async fn a_dropped_guard_releases() {
    let (sidecar, client) = start();
    for _ in 0..100 {
        drop(client.try_acquire("k", Options::new()).await.unwrap().expect("the client holds the key itself"));
    }
    let guards = client.acquire_many(["a", "b"], Options::new()).await.unwrap();
    drop(guards);
    for key in ["k", "a", "b"] {
        is_free(&sidecar.client(), key).await;
    }
    // Also outside of a runtime, and in a panic.
    let guard = client.acquire("k", Options::new()).await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    is_free(&sidecar.client(), "k").await;
    let panics = tokio::spawn({
        let client = client.clone();
        async move {
            client
                .lock("k", Options::new(), |_| async {
                    if true {
                        panic!("of the app")
                    }
                    Ok::<_, Error>(())
                })
                .await
        }
    });
    assert!(panics.await.unwrap_err().is_panic());
    is_free(&sidecar.client(), "k").await;
}

/// A lock that is bound to its TTL is not released by a drop.
#[tokio::test]
async fn a_dropped_guard_of_a_ttl_keeps_its_lock() {
    let (sidecar, client) = start();
    let guard = client.acquire("k", Options::new().bind_to_ttl().ttl(Duration::from_secs(600))).await.unwrap();
    let token = guard.token();
    drop(guard);
    drop(client);
    let other = sidecar.client();
    other.check("k", token).await.unwrap();
    assert!(other.release("k", token, locksidecar::Release::new()).await.unwrap().free);
}

/// The work under a lock is dropped before the lock is released, not after it.
#[tokio::test(flavor = "multi_thread")]
async fn work_is_dropped_before_its_lock_is_released() {
    struct Work {
        observer: Client,
        held: Arc<AtomicBool>,
    }
    impl Drop for Work {
        fn drop(&mut self) {
            // Long enough for a release that would have begun.
            std::thread::sleep(Duration::from_millis(100));
            let observer = self.observer.clone();
            let asks = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(observer.get_fresh("k")).unwrap().held
            });
            self.held.store(asks.join().unwrap(), Ordering::SeqCst);
        }
    }
    let (sidecar, client) = start();
    for form in ["lock", "once", "lead"] {
        let held = Arc::new(AtomicBool::new(false));
        let (begun, mut begins) = tokio::sync::mpsc::channel(1);
        let work = |_| {
            let (begun, work) = (begun.clone(), Work { observer: sidecar.client(), held: held.clone() });
            async move {
                begun.send(()).await.unwrap();
                std::future::pending::<()>().await;
                drop(work);
                Ok::<_, Error>(())
            }
        };
        let call = async {
            match form {
                "lock" => client.lock("k", Options::new(), work).await,
                "once" => client.once("k", Options::new(), work).await,
                _ => client.lead("k", Options::new(), work).await,
            }
        };
        tokio::select! {
            _ = call => unreachable!(),
            _ = begins.recv() => {}
        }
        assert!(held.load(Ordering::SeqCst), "{form}: the work was dropped after its lock");
        is_free(&sidecar.client(), "k").await;
    }
}

/// A release that is dropped goes on.
#[tokio::test]
async fn a_dropped_release_goes_on() {
    let (sidecar, client) = start();
    let guard = client.acquire("k", Options::new()).await.unwrap();
    sidecar.hang();
    assert!(tokio::time::timeout(Duration::from_millis(50), guard.release()).await.is_err());
    let handle = guard.handle();
    std::mem::forget(guard); // so only that release ends it
    sidecar.resume();
    is_free(&sidecar.client(), "k").await;
    until("the release has its answer", || async { handle.released().map(drop).ok_or_else(String::new) }).await;
}

/// The last handle of a client, or the end of its runtime, releases its locks and leaves no thread.
#[test]
fn clients_and_runtimes_end() {
    let sidecar = Sidecar::start(&[]);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let observer = sidecar.client();
    // A runtime that is dropped with a call that waits, and a guard in a task.
    let client = sidecar.client();
    let first = runtime();
    let (told, tell) = std::sync::mpsc::channel();
    first.spawn({
        let client = client.clone();
        async move {
            let _guard = client.acquire("k", Options::new()).await.unwrap();
            told.send(()).unwrap();
            let _: Result<()> = client.acquire("k", Options::new()).await.map(drop);
        }
    });
    first.block_on(waits_for(&observer, "k", 1));
    tell.recv().unwrap();
    drop(first);
    // The client works in another runtime, and in two at a time.
    let second = runtime();
    second.block_on(is_free(&observer, "k"));
    let guard = second.block_on(client.acquire("k", Options::new())).unwrap();
    let third = runtime();
    assert!(third.block_on(client.try_acquire("k", Options::new())).unwrap().is_none());
    third.block_on(guard.check()).unwrap();
    drop(second);
    third.block_on(guard.check()).unwrap();
    // The guard keeps the client.
    drop(client);
    third.block_on(guard.check()).unwrap();
    std::mem::forget(guard.handle());
    drop(guard);
    third.block_on(is_free(&observer, "k"));
    // An executor of another kind.
    let client = sidecar.client();
    let guard = block_on(client.acquire("k", Options::new())).unwrap();
    block_on(guard.release()).unwrap();
    let _held = block_on(client.acquire("k", Options::new())).unwrap();
    block_on(client.close());
    assert!(!block_on(observer.get_fresh("k")).unwrap().held, "close returns before the lock is free");
}

/// An executor without tokio.
fn block_on<F: Future>(work: F) -> F::Output {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Thread(std::thread::current())).into();
    let mut work = std::pin::pin!(work);
    loop {
        match work.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(done) => return done,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
