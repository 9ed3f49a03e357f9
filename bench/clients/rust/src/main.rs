//! pairs locksidecar|rslock|socket SERVER CALLERS SECONDS: prints the pairs of acquire and release a second, each task with a key of its own. Before that, all tasks
//! want one key, and it fails if two have it at a time. `rslock` is the crate for Redlock on one server of Redis, with one connection that its callers share.
//! `socket` is a bare loop over the sidecar's socket.

mod socket;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use locksidecar::{Client, Guard, Options};
use rslock::LockManager;
use socket::{Bare, Token};

#[derive(Clone)]
enum Library {
    Ours(Client),
    Theirs(LockManager),
    Bare(Bare),
}

enum Held<'a> {
    Ours(Guard),
    Theirs(&'a LockManager, rslock::Lock),
    Bare(&'a Bare, String, Token),
}

impl Library {
    async fn acquire(&self, key: &str) -> Option<Held<'_>> {
        match self {
            Library::Ours(client) => client.try_acquire(key, Options::new()).await.unwrap().map(Held::Ours),
            Library::Theirs(manager) => manager.lock(key, Duration::from_secs(30)).await.ok().map(|lock| Held::Theirs(manager, lock)),
            Library::Bare(bare) => bare.acquire(key).await.unwrap().map(|token| Held::Bare(bare, key.to_owned(), token)),
        }
    }
}

impl Held<'_> {
    async fn release(self) {
        match self {
            Held::Ours(guard) => drop(guard.release().await.unwrap()),
            Held::Theirs(manager, lock) => manager.unlock(&lock).await,
            Held::Bare(bare, key, token) => bare.release(&key, &token).await.unwrap(),
        }
    }
}

/// Runs all tasks for a time, and returns the number of pairs a second.
async fn each<F, R>(callers: usize, length: Duration, pair: F) -> f64
where
    F: Fn(usize) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = bool> + Send,
{
    let began = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|n| {
            let pair = pair.clone();
            tokio::spawn(async move {
                let mut pairs = 0;
                while began.elapsed() < length {
                    pairs += usize::from(pair(n).await);
                }
                pairs
            })
        })
        .collect();
    let mut pairs = 0;
    for task in tasks {
        pairs += task.await.unwrap();
    }
    pairs as f64 / began.elapsed().as_secs_f64()
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (server, callers, seconds) = (&arguments[2], arguments[3].parse().unwrap(), arguments[4].parse().unwrap());
    let library = match arguments[1].as_str() {
        "locksidecar" => Library::Ours(Client::builder().socket(server).build()),
        "socket" => Library::Bare(Bare::open(server).await.unwrap()),
        _ => {
            let mut manager = LockManager::new(vec![format!("redis+unix://{server}")]);
            manager.set_retry(1, Duration::ZERO); // one try, as our calls do not wait, either
            Library::Theirs(manager)
        }
    };
    let inside = Arc::new(AtomicUsize::new(0));
    let of = library.clone();
    let contended = each(callers, Duration::from_millis(500), move |_| {
        let (library, inside) = (of.clone(), inside.clone());
        async move {
            let Some(held) = library.acquire("bench:one").await else { return false };
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two had the lock at a time");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            held.release().await;
            true
        }
    })
    .await;
    assert!(contended > 0.0, "nobody got the lock");
    let own = move |n: usize| {
        let library = library.clone();
        async move {
            let held = library.acquire(&format!("bench:{n}")).await.expect("a key that nobody else uses is held");
            held.release().await;
            true
        }
    };
    each(callers, Duration::from_secs(1), own.clone()).await; // warm
    println!("{:.0}", each(callers, Duration::from_secs_f64(seconds), own).await);
}
