//! A program of the campaign: `worker TASK`, with what it is to do as JSON. Tasks, whose futures are dropped.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{BufRead, Write};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use locksidecar::{Client, Error, Lock, Options, Semaphore};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::{json, Map, Value};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};
use tokio::task::{AbortHandle, JoinSet, LocalSet};
use tokio::time::sleep;

const KEYS: [&str; 4] = ["k0", "k1", "k2", "k3"];
const FORMS: [&str; 9] = ["lock", "lock", "acquire", "acquire", "try", "many", "semaphore", "permit", "nested"];
const LIMIT: u32 = 2;
/// How long an object that all tasks use may take until it was granted again, when nothing fails.
const AGAIN: Duration = Duration::from_secs(20);
/// What it may take besides its code, with the stacks of its threads.
const MEMORY: u64 = 512 << 20;

/// A line of the history.
type Op = Rc<RefCell<Map<String, Value>>>;

/// The history: a line for each beginning and each end.
struct Notes {
    task: Value,
    file: RefCell<File>,
    number: Cell<u64>,
}

impl Notes {
    fn begin(&self, kind: &str, actor: i64, fields: Value) -> Op {
        self.number.set(self.number.get() + 1);
        let name = self.task["name"].as_str().unwrap();
        let mut op = json!({
            "id": format!("{name}-{}", self.number.get()), "app": name, "program": self.task["program"], "sidecar": self.task["sidecar"],
            "pid": std::process::id(), "actor": actor, "kind": kind, "call": self.now(),
        });
        let op = op.as_object_mut().unwrap();
        op.extend(fields.as_object().unwrap().clone());
        self.write(op);
        Rc::new(RefCell::new(std::mem::take(op)))
    }

    fn end(&self, op: &Op, outcome: &str) {
        let mut op = op.borrow_mut();
        op.insert("outcome".to_owned(), outcome.into());
        op.insert("return".to_owned(), self.now().into());
        self.write(&op);
    }

    /// From now on it is cancelled. It may never end.
    fn cancel(&self, op: &Op) {
        let mut op = op.borrow_mut();
        op.insert("cancel".to_owned(), self.now().into());
        self.write(&op);
    }

    fn fail(&self, op: &Op, error: &Error) {
        let (kind, wait) = (op.borrow()["kind"] == "acquire", op.borrow().get("wait").and_then(Value::as_i64).unwrap_or(0));
        if kind && (wait > 0 && matches!(error, Error::WaitTimeout(_)) || wait == 0 && matches!(error, Error::LockHeld(_))) {
            return self.end(op, "timeout");
        }
        op.borrow_mut().extend([("error".to_owned(), error.code().into()), ("text".to_owned(), error.to_string().into())]);
        self.end(op, "failed");
    }

    fn now(&self) -> i64 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes into t.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) }, 0);
        t.tv_sec * 1_000_000_000 + t.tv_nsec + self.task["offset"].as_i64().unwrap()
    }

    fn write(&self, op: &Map<String, Value>) {
        let line = serde_json::to_string(op).unwrap() + "\n";
        self.file.borrow_mut().write_all(line.as_bytes()).unwrap(); // in one piece
    }
}

fn over(op: &Op) -> bool {
    op.borrow().contains_key("return")
}

/// One client, and what its tasks share.
struct Program {
    notes: Notes,
    client: Client,
    semaphore: Semaphore,
    forms: Vec<&'static str>,
    actors: i64,
    ttl: Duration,
    calm: Cell<bool>,
}

/// One acquire, and what becomes of it.
struct Hold {
    program: Rc<Program>,
    actor: i64,
    rng: RefCell<StdRng>,
    op: Op,
    entering: RefCell<Option<Op>>,
    released: RefCell<Option<Op>>,
    told: RefCell<Vec<AbortHandle>>,
}

type Work<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

impl Hold {
    fn new(program: &Rc<Program>, actor: i64, rng: StdRng, op: Op) -> Rc<Hold> {
        Rc::new(Hold {
            program: program.clone(),
            actor,
            rng: RefCell::new(rng),
            op,
            entering: RefCell::default(),
            released: RefCell::default(),
            told: RefCell::default(),
        })
    }

    fn notes(&self) -> &Notes {
        &self.program.notes
    }

    fn options(&self) -> Options {
        let options = Options::new().ttl(self.program.ttl).data(self.op.borrow()["id"].clone());
        match u64::try_from(self.op.borrow()["wait"].as_i64().unwrap()) {
            Ok(wait) => options.wait(Duration::from_millis(wait)),
            Err(_) => options,
        }
    }

    fn got(self: &Rc<Self>, locks: &[Lock]) {
        let keys: Vec<_> = locks.iter().map(Lock::key).collect();
        let tokens: Vec<_> = locks.iter().map(Lock::token).collect();
        self.op.borrow_mut().extend([("keys".to_owned(), json!(keys)), ("tokens".to_owned(), json!(tokens))]);
        self.notes().end(&self.op, "granted");
        for lock in locks {
            let (hold, key, lost) = (self.clone(), lock.key().to_owned(), lock.lost());
            let told = tokio::task::spawn_local(async move {
                lost.await;
                let op = hold.notes().begin("lost", hold.actor, json!({"hold": hold.op.borrow()["id"], "keys": [key]}));
                hold.notes().end(&op, "done");
            });
            self.told.borrow_mut().push(told.abort_handle());
        }
    }

    /// Now and then for longer than a lease.
    async fn rest(&self) {
        let pause = {
            let mut rng = self.rng.borrow_mut();
            match rng.random_bool(0.98) {
                true => *[0, 5, 20, 50].choose(&mut *rng).unwrap(),
                false => rng.random_range(1000..8000),
            }
        };
        sleep(Duration::from_millis(pause)).await;
    }

    fn leaves(&self) {
        let (form, id) = (self.op.borrow()["form"].clone(), self.op.borrow()["id"].clone());
        *self.released.borrow_mut() = Some(self.notes().begin("release", self.actor, json!({"form": form, "hold": id})));
    }

    async fn body(self: Rc<Self>, locks: Vec<Lock>) -> Result<(), Error> {
        self.got(&locks);
        self.rest().await;
        self.leaves();
        Ok(())
    }

    /// Releases a lock, until it is released.
    async fn release(&self, lock: &Lock) -> Result<(), Error> {
        loop {
            self.leaves();
            match lock.release().await {
                Err(e @ (Error::Unavailable(_) | Error::LimitReached(_))) => {
                    let released = self.released.borrow().clone();
                    self.notes().fail(&released.unwrap(), &e);
                    sleep(Duration::from_millis(200)).await;
                }
                other => return other.map(drop),
            }
        }
    }

    async fn holds(self: &Rc<Self>, lock: &Lock) -> Result<(), Error> {
        self.got(std::slice::from_ref(lock));
        self.rest().await;
        self.release(lock).await
    }

    async fn run(self: Rc<Self>, keys: Vec<String>) -> Result<(), Error> {
        let (program, key, form) = (self.program.clone(), keys[0].as_str(), self.op.borrow()["form"].as_str().unwrap().to_owned());
        let hold = self.clone();
        match form.as_str() {
            "lock" => program.client.lock(key, self.options(), |lock| hold.body(vec![lock])).await,
            "many" => program.client.lock_many(keys.clone(), self.options(), |locks| hold.body(locks)).await,
            "semaphore" => program.semaphore.lock(self.options(), |permit| hold.body(vec![permit])).await,
            "nested" => program.client.lock(key, self.options().reentrant(), |lock| hold.nested(lock)).await,
            "try" => match program.client.try_acquire(key, self.options()).await? {
                Some(guard) => self.holds(&guard).await,
                None => {
                    self.notes().end(&self.op, "timeout");
                    Ok(())
                }
            },
            "permit" => self.holds(&*program.semaphore.acquire(self.options()).await?).await,
            "through" => {
                let guard = program.client.acquire(key, self.options()).await?;
                self.got(std::slice::from_ref(&*guard));
                while guard.loss().is_none() && !program.calm.get() {
                    sleep(Duration::from_millis(50)).await;
                }
                self.release(&guard).await
            }
            _ => self.holds(&*program.client.acquire(key, self.options()).await?).await,
        }
    }

    async fn nested(self: Rc<Self>, lock: Lock) -> Result<(), Error> {
        self.got(std::slice::from_ref(&lock));
        let id = self.op.borrow()["id"].clone();
        let enter = self.notes().begin("enter", self.actor, json!({"form": "nested", "keys": [lock.key()], "wait": self.op.borrow()["wait"], "hold": id}));
        *self.entering.borrow_mut() = Some(enter);
        let hold = self.clone();
        let work: Work = Box::pin(self.program.client.lock(lock.key(), self.options().reentrant(), |inner| async move {
            let enter = hold.entering.borrow_mut().take().unwrap();
            enter.borrow_mut().insert("tokens".to_owned(), json!([inner.token()]));
            hold.notes().end(&enter, "granted");
            hold.rest().await;
            *hold.entering.borrow_mut() = Some(hold.notes().begin("leave", hold.actor, json!({"form": "nested", "hold": hold.op.borrow()["id"]})));
            Ok(())
        }));
        let done = work.await;
        if let Some(call) = self.entering.borrow_mut().take() {
            match done {
                Ok(()) => self.notes().end(&call, "done"),
                Err(e) => self.notes().fail(&call, &e),
            }
        }
        self.leaves();
        Ok(())
    }

    /// Runs it, until it is struck: then its future is dropped.
    async fn ends(self: Rc<Self>, keys: Vec<String>, strike: Option<Duration>) {
        let mut run: Work = Box::pin(self.clone().run(keys));
        let done = match strike {
            Some(delay) => tokio::select! {
                biased;
                done = &mut run => Some(done),
                () = sleep(delay) => None,
            },
            None => Some(run.as_mut().await),
        };
        let granted = self.op.borrow().get("outcome").is_some_and(|outcome| outcome == "granted");
        if (granted && done.as_ref().is_none_or(Result::is_err)) && self.released.borrow().is_none() {
            self.leaves();
        }
        let call = if granted || over(&self.op) { self.released.borrow().clone() } else { Some(self.op.clone()) };
        if done.is_none() {
            let entering = self.entering.borrow_mut().take();
            for under in [&call, &entering].into_iter().flatten() {
                self.notes().cancel(under);
            }
            drop(run);
            for under in [&call, &entering].into_iter().flatten() {
                self.notes().end(under, "cancelled");
            }
        } else {
            let entering = self.entering.borrow_mut().take(); // the loss of the outer lock has dropped the inner block
            for under in [call, entering].into_iter().flatten() {
                match &done {
                    Some(Err(e)) => self.notes().fail(&under, e),
                    _ => self.notes().end(&under, "done"),
                }
            }
        }
        for told in self.told.borrow_mut().drain(..) {
            told.abort();
        }
    }
}

impl Program {
    async fn act(self: &Rc<Self>, actor: i64, rng: &mut StdRng) {
        let form = *self.forms.choose(rng).unwrap();
        let wait = if form == "try" { 0 } else { *[0, 50, 200, 1000, 2000, -1].choose(rng).unwrap() };
        let mut keys: Vec<String> = KEYS.iter().map(|key| (*key).to_owned()).collect();
        keys.shuffle(rng);
        keys.truncate(if form == "many" { rng.random_range(2..4) } else { 1 });
        if form == "semaphore" || form == "permit" {
            keys = vec!["s0".to_owned()];
        } else if form != "many" && rng.random_bool(0.4) {
            // Now and then a key that nobody else wants. The call is quick then, so a drop meets all its steps.
            keys = vec![format!("own:{}:{actor}", self.notes.task["name"].as_str().unwrap())];
        }
        let limit = if keys[0] == "s0" { LIMIT } else { 0 };
        let op = self.notes.begin("acquire", actor, json!({"form": form, "keys": keys, "wait": wait, "limit": limit}));
        let strike = rng.random_bool(0.5).then(|| Duration::from_micros(*[0, 100, 300, 600, 1000, 5000, 50_000, 500_000, 2_000_000].choose(rng).unwrap()));
        Hold::new(self, actor, StdRng::from_rng(rng), op).ends(keys, strike).await;
    }

    async fn acts(self: Rc<Self>, actor: i64) {
        let mut rng = StdRng::seed_from_u64(self.notes.task["seed"].as_u64().unwrap() * 100 + actor as u64);
        while !self.calm.get() {
            self.act(actor, &mut rng).await;
            sleep(Duration::from_millis(rng.random_range(0..50))).await;
        }
    }

    /// Holds a lock until it is lost, also while the sidecar is frozen, and then again.
    async fn holds_through(self: Rc<Self>) {
        while !self.calm.get() {
            let keys = vec![format!("through:{}", self.notes.task["name"].as_str().unwrap())];
            let op = self.notes.begin("acquire", self.actors, json!({"form": "through", "keys": keys, "wait": -1}));
            Hold::new(&self, self.actors, StdRng::seed_from_u64(0), op).ends(keys, None).await;
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn work(self: &Rc<Self>) -> JoinSet<()> {
        self.calm.set(false);
        let mut all = JoinSet::new();
        all.spawn_local(self.clone().holds_through());
        for actor in 0..self.actors {
            all.spawn_local(self.clone().acts(actor));
        }
        all
    }

    async fn quieten(&self, mut working: JoinSet<()>) {
        self.calm.set(true);
        while let Some(ended) = working.join_next().await {
            ended.unwrap();
        }
    }

    fn quiet(&self, fields: Value) {
        self.notes.end(&self.notes.begin("quiet", -1, fields), "done");
    }

    /// Works until the campaign says calm, and so on until it ends.
    async fn rounds(self: Rc<Self>, mut commands: UnboundedReceiver<String>) {
        let (mut working, mut kept) = (self.work(), None);
        while let Some(command) = commands.recv().await {
            match command.as_str() {
                "calm" => {
                    self.quieten(std::mem::take(&mut working)).await;
                    let key = format!("keep:{}", self.notes.task["name"].as_str().unwrap());
                    let lock = self.client.acquire(&key, Options::new().wait(AGAIN).ttl(self.ttl).data("kept")).await.unwrap();
                    self.quiet(json!({"keys": [key], "tokens": [lock.token()]}));
                    kept = Some(lock);
                }
                "again" => {
                    kept.take().unwrap().release().await.unwrap();
                    self.use_again().await;
                    self.quiet(json!({"form": "again"}));
                }
                _ => working = self.work(),
            }
        }
        self.quieten(working).await;
        self.client.close().await;
        self.quiet(json!({"form": "closed"}));
    }

    async fn use_again(&self) {
        let wait = || Options::new().wait(AGAIN);
        for key in KEYS {
            self.uses("acquire", &[key], async { self.client.acquire(key, wait()).await?.release().await.map(drop) }).await;
        }
        self.uses("permit", &["s0"], async { self.semaphore.acquire(wait()).await?.release().await.map(drop) }).await;
        self.uses("many", &KEYS, async { self.client.acquire_many(KEYS, wait()).await?.release().await }).await;
    }

    async fn uses(&self, form: &str, keys: &[&str], run: impl Future<Output = Result<(), Error>>) {
        let op = self.notes.begin("again", -1, json!({"form": form, "keys": keys}));
        match run.await {
            Ok(()) => self.notes.end(&op, "done"),
            Err(e) => self.notes.fail(&op, &e),
        }
    }
}

fn main() {
    let limit = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
    // SAFETY: it reads limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
    let task: Value = serde_json::from_str(&std::env::args().nth(1).unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seconds = |name: &str| Duration::from_secs_f64(task[name].as_f64().unwrap());
    let client = Client::builder()
        .socket(task["socket"].as_str().unwrap())
        .name(task["name"].as_str().unwrap())
        .timeout(seconds("timeout"))
        .reconnect(seconds("reconnect"))
        .build();
    let only = task["forms"].as_array().cloned().unwrap_or_default();
    let program = Rc::new(Program {
        semaphore: client.semaphore("s0", LIMIT),
        client,
        forms: FORMS.into_iter().filter(|form| only.is_empty() || only.contains(&json!(form))).collect(),
        actors: task["actors"].as_i64().unwrap(),
        ttl: seconds("ttl"),
        calm: Cell::new(false),
        notes: Notes {
            file: RefCell::new(OpenOptions::new().create(true).append(true).open(task["records"].as_str().unwrap()).unwrap()),
            number: Cell::new(0),
            task,
        },
    });
    let (tell, commands) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let _ = tell.send(line.unwrap());
        }
    });
    LocalSet::new().block_on(&runtime, async {
        let mut ended = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        let rounds = tokio::task::spawn_local(program.rounds(commands));
        tokio::select! {
            _ = ended.recv() => std::process::exit(0),
            done = rounds => done.unwrap(),
        }
        ended.recv().await;
    });
}
