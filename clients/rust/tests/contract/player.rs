//! Plays one case.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use locksidecar::{
    testing::Sidecar, Builder, Client, Error, Event, Guard, Holder, Lock, LockInfo, Mode, Options, Outcome, Query, Release, Scope, Status, Stopping,
};
use serde_json::{json, Map, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::matching::{difference, fill_in};

const ANSWER_TIME: Duration = Duration::from_secs(60);
const REPEAT_PAUSE: Duration = Duration::from_millis(5);

/// The result of a call, or what is wrong with the case.
type Played = Result<Value, String>;
type Members = Map<String, Value>;

/// A session of a case: a client, its locks, and the news of them.
struct Party {
    client: Client,
    events: mpsc::UnboundedSender<Value>,
    heard: tokio::sync::Mutex<mpsc::UnboundedReceiver<Value>>,
    locks: Mutex<Vec<Guard>>,
    ended: Mutex<bool>,
}

/// A block that was entered.
struct Block {
    leave: oneshot::Sender<bool>,
    left: JoinHandle<Result<(), Left>>,
}

enum Left {
    Raised,
    By(Error),
}

impl From<Error> for Left {
    fn from(e: Error) -> Left {
        Left::By(e)
    }
}

struct Player {
    sidecar: Arc<Sidecar>,
    /// How to reach it.
    at: Builder,
    prefix: String,
    parties: Mutex<HashMap<String, Arc<Party>>>,
    nobody: Arc<Party>,
    watches: Mutex<HashMap<String, Arc<tokio::sync::Mutex<locksidecar::Items<Event>>>>>,
    /// The state that a watch has begun with.
    first: Mutex<HashMap<String, Event>>,
    blocks: Mutex<HashMap<String, Block>>,
}

pub async fn play(sidecar: &Arc<Sidecar>, at: &Builder, steps: &[Members]) -> Result<(), String> {
    let player = Arc::new(Player {
        sidecar: sidecar.clone(),
        at: at.clone(),
        prefix: format!("{:08x}-", rand::random::<u32>()),
        parties: Mutex::default(),
        nobody: party(at.clone()),
        watches: Mutex::default(),
        first: Mutex::default(),
        blocks: Mutex::default(),
    });
    let mut case = Steps { player: player.clone(), saved: HashMap::new(), started: HashMap::new() };
    let mut result = Ok(());
    for (n, step) in steps.iter().enumerate() {
        if let Err(wrong) = case.step(step).await {
            result = Err(format!("step {}, {}: {wrong}", n + 1, Value::Object(step.clone())));
            break;
        }
    }
    if result.is_ok() && !case.started.is_empty() {
        result = Err("a call was neither finished nor cancelled".into());
    }
    for call in case.started.into_values() {
        call.abort();
    }
    for (_, block) in std::mem::take(&mut *player.blocks.lock().unwrap()) {
        block.left.abort();
    }
    let parties: Vec<_> = player.parties.lock().unwrap().drain().map(|(_, party)| party).collect();
    for party in parties.iter().chain([&player.nobody]) {
        party.client.close().await;
        party.locks.lock().unwrap().clear();
    }
    result
}

fn party(builder: Builder) -> Arc<Party> {
    let (events, heard) = mpsc::unbounded_channel();
    // A wait ends with the sidecar's answer.
    let client = builder.reconnect(Duration::ZERO).build();
    Arc::new(Party { client, events, heard: tokio::sync::Mutex::new(heard), locks: Mutex::default(), ended: Mutex::new(false) })
}

struct Steps {
    player: Arc<Player>,
    saved: HashMap<String, Value>,
    started: HashMap<String, JoinHandle<Played>>,
}

impl Steps {
    async fn step(&mut self, step: &Members) -> Result<(), String> {
        let verb = step.keys().find(|name| !["expect", "until", "save", "start"].contains(&name.as_str())).ok_or("it has no verb")?;
        let filled = fill_in(&step[verb], &self.saved)?;
        let given = filled.as_object().cloned().unwrap_or_default();
        if let Some(name) = step.get("start").and_then(Value::as_str) {
            let (player, verb) = (self.player.clone(), verb.clone());
            self.started.insert(name.to_owned(), tokio::spawn(async move { player.perform(&verb, given).await }));
            return Ok(());
        }
        let until = step.get("until");
        let mut want = until.or(step.get("expect")).map(|want| fill_in(want, &self.saved)).transpose()?;
        if want.is_none() && verb == "open" {
            want = Some(json!({"opened": true}));
        }
        let end = tokio::time::Instant::now() + ANSWER_TIME;
        loop {
            let result = match verb.as_str() {
                "finish" | "cancel" => self.finish(given["call"].as_str().unwrap_or_default(), verb == "cancel").await?,
                _ => {
                    tokio::time::timeout_at(end, self.player.perform(verb, given.clone())).await.map_err(|_| format!("no answer within {ANSWER_TIME:?}"))??
                }
            };
            let wrong = want.as_ref().and_then(|want| difference(want, &result, "result").err());
            let Some(wrong) = wrong else {
                for (name, path) in step.get("save").and_then(Value::as_object).into_iter().flatten() {
                    let pointer = format!("/{}", path.as_str().unwrap_or_default().replace('.', "/"));
                    let value = result.pointer(&pointer).ok_or_else(|| format!("there is no {path} in {result}"))?;
                    self.saved.insert(name.clone(), value.clone());
                }
                return Ok(());
            };
            if until.is_none() || tokio::time::Instant::now() > end {
                return Err(format!("{wrong}; the result was {result}"));
            }
            tokio::time::sleep(REPEAT_PAUSE).await;
        }
    }

    async fn finish(&mut self, name: &str, cancel: bool) -> Played {
        let call = self.started.remove(name).ok_or_else(|| format!("{name} was not started"))?;
        if cancel {
            call.abort();
            let _ = call.await;
            return Ok(json!({}));
        }
        tokio::time::timeout(ANSWER_TIME, call).await.map_err(|_| format!("{name} has no answer after {ANSWER_TIME:?}"))?.map_err(|e| e.to_string())?
    }
}

/// The arguments of a step.
struct Arguments(Members);

impl Arguments {
    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }
    fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(Value::as_i64)
    }
    fn ms(&self, name: &str) -> Option<Result<Duration, Value>> {
        // A Duration cannot be negative. So that wrong call cannot be made with this client.
        let n = self.number(name)?;
        Some(u64::try_from(n).map(Duration::from_millis).map_err(|_| impossible(name, &format!("{n} must not be negative"))))
    }
}

fn impossible(name: &str, why: &str) -> Value {
    json!({"error": "invalid_request", "detail": format!("{name}: {why}")})
}

/// What a call ends with: an error of the client, or a result of a call that cannot be made.
enum Refused {
    By(Error),
    Impossible(Value),
    Wrong(String),
}

impl From<Error> for Refused {
    fn from(e: Error) -> Refused {
        Refused::By(e)
    }
}

impl From<Value> for Refused {
    fn from(value: Value) -> Refused {
        Refused::Impossible(value)
    }
}

impl From<String> for Refused {
    fn from(wrong: String) -> Refused {
        Refused::Wrong(wrong)
    }
}

impl Player {
    /// Makes the call of a step. Its result has no prefix before the keys.
    async fn perform(self: &Arc<Self>, verb: &str, given: Members) -> Played {
        let mut a = Arguments(given);
        for name in ["key", "prefix", "type"] {
            if let Some(Value::String(text)) = a.0.get_mut(name) {
                text.insert_str(0, &self.prefix);
            }
        }
        if let Some(Value::Array(keys)) = a.0.get_mut("keys") {
            for key in keys {
                *key = format!("{}{}", self.prefix, key.as_str().unwrap_or_default()).into();
            }
        }
        if verb == "list" && !a.has("prefix") && !a.has("type") {
            a.0.insert("prefix".into(), self.prefix.clone().into());
        }
        let mut result = match self.call(verb, &a).await {
            Ok(result) => result,
            Err(Refused::By(e)) => refused(&e),
            Err(Refused::Impossible(result)) => result,
            Err(Refused::Wrong(wrong)) => return Err(wrong),
        };
        self.bare(&mut result, "");
        Ok(result)
    }

    fn bare(&self, value: &mut Value, name: &str) {
        match value {
            Value::String(text) if ["key", "type", "keys"].contains(&name) => {
                if let Some(rest) = text.strip_prefix(&self.prefix) {
                    *text = rest.to_owned();
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.bare(item, name)),
            Value::Object(members) => {
                members.iter_mut().filter(|(member, _)| *member != "data" && *member != "result").for_each(|(member, value)| self.bare(value, member))
            }
            _ => {}
        }
    }

    async fn call(self: &Arc<Self>, verb: &str, a: &Arguments) -> Result<Value, Refused> {
        let who = match a.text("session") {
            "" => self.nobody.clone(),
            name => self.parties.lock().unwrap().get(name).cloned().ok_or_else(|| format!("no session {name} was opened"))?,
        };
        let (client, key, token) = (&who.client, a.text("key"), a.number("token"));
        Ok(match verb {
            "open" => {
                let mut builder = self.at.clone();
                if a.has("name") {
                    builder = builder.name(a.text("name"));
                }
                if let Some(ttl) = a.ms("ttl_ms") {
                    builder = builder.ttl(ttl?);
                }
                let party = party(builder);
                party.client.connect().await?;
                self.parties.lock().unwrap().insert(a.text("as").to_owned(), party);
                json!({"opened": true})
            }
            "close" => {
                client.close().await;
                json!({})
            }
            "acquire" => self.acquire(&who, key, a).await?,
            "acquire_many" => {
                let keys: Vec<_> = a.0["keys"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
                let guards = client.acquire_many(keys.clone(), options(a)?).await?;
                // Their order is that of the keys.
                let mut locks = Vec::new();
                for guard in guards.into_guards() {
                    locks.push(granted(&guard));
                    who.follow(guard.handle());
                    who.locks.lock().unwrap().push(guard);
                }
                json!({"granted": true, "locks": locks})
            }
            "enter" => self.enter(&who, key, a).await?,
            "leave" => {
                let block = self.blocks.lock().unwrap().remove(a.text("block")).ok_or("there is no such block".to_owned())?;
                let _ = block.leave.send(a.0.get("raise") == Some(&true.into()));
                match block.left.await.map_err(|e| e.to_string())? {
                    Ok(()) => json!({"left": true}),
                    Err(Left::Raised) => json!({"raised": true}),
                    Err(Left::By(e)) => return Err(e.into()),
                }
            }
            "release" => {
                let mut options = Release::new();
                if let Some(result) = a.0.get("result") {
                    options = options.result(result);
                }
                if a.has("outcome") {
                    options = options.outcome(serde_json::from_value::<Outcome>(a.0["outcome"].clone()).map_err(|e| e.to_string())?);
                }
                if let Some(n) = a.number("reentry") {
                    options = options.reentry(u32::try_from(n).map_err(|_| impossible("reentry", "it must not be negative"))?);
                }
                let token = token.unwrap_or_default();
                let done = match who.held(key, token) {
                    Some(lock) => lock.release_with(options).await?,
                    None => client.release(key, token, options).await?,
                };
                json!({"key": key, "released": done.free, "reentry": done.reentry})
            }
            "force_release" => {
                match token {
                    Some(token) => client.force_release_holder(key, token).await?,
                    None => client.force_release(key).await?,
                }
                json!({"released": true, "key": key})
            }
            "check" | "extend" | "downgrade" => {
                let token = token.unwrap_or_default();
                let (lock, ttl, data) = (who.held(key, token), a.ms("ttl_ms").transpose()?, a.0.get("data"));
                checked(&match (verb, lock) {
                    ("downgrade", lock) => lock.ok_or("there is no such lock".to_owned())?.downgrade().await?,
                    ("extend", Some(lock)) => lock.extend(ttl.unwrap_or_default()).await?,
                    ("extend", None) => client.extend(key, token, ttl.unwrap_or_default()).await?,
                    (_, Some(lock)) => match data {
                        Some(data) => lock.update(data).await?,
                        None => lock.check().await?,
                    },
                    (_, None) => match data {
                        Some(data) => client.update(key, token, data).await?,
                        None => client.check(key, token).await?,
                    },
                })
            }
            "get" => shown(&if a.0.get("fresh") == Some(&true.into()) { client.get_fresh(key).await? } else { client.get(key).await? }),
            "list" => {
                let mut query = Query::new();
                match a.text("scope") {
                    "" => {}
                    "all" => query = query.scope(Scope::All),
                    "pod" => query = query.scope(Scope::Pod),
                    "session" => query = query.scope(Scope::Session),
                    // An enum has no other values. So that wrong call cannot be made with this client.
                    other => return Err(impossible("scope", &format!("{other:?} is none")).into()),
                }
                if a.has("prefix") {
                    query = query.prefix(a.text("prefix"));
                }
                if a.has("type") {
                    query = query.kind(a.text("type"));
                }
                if let Some(n) = a.number("limit") {
                    query = query.page_size(u32::try_from(n).map_err(|_| impossible("limit", "it must not be negative"))?);
                }
                let locks = client.locks(query).all().await?;
                json!({"keys": locks.iter().map(|info| info.key.clone()).collect::<Vec<_>>(), "locks": locks.iter().map(shown).collect::<Vec<_>>()})
            }
            "stop" => {
                match token {
                    Some(token) => client.stop_holder(key, token, a.text("reason")).await?,
                    None => client.stop(key, a.text("reason")).await?,
                }
                json!({"requested": true, "key": key})
            }
            "watch" => {
                let mut events = self.nobody.client.events(key);
                let first = events.next().await.ok_or("the stream has no event".to_owned())??;
                let name = a.text("as").to_owned();
                self.first.lock().unwrap().insert(name.clone(), first);
                self.watches.lock().unwrap().insert(name, Arc::new(tokio::sync::Mutex::new(events)));
                json!({"watching": true})
            }
            "next" => self.next(a.text("of")).await?,
            "sidecar" => {
                self.sidecar.signal(if a.has("signal") { a.text("signal") } else { "TERM" });
                json!({"sent": true})
            }
            "features" => {
                let description = client.describe().await?;
                json!({"version": description.version, "api": description.api, "namespace": description.namespace, "features": description.features})
            }
            _ => return Err(format!("this runner does not know {verb}").into()),
        })
    }

    async fn acquire(&self, who: &Arc<Party>, key: &str, a: &Arguments) -> Result<Value, Refused> {
        let (granting, grant) = tokio::sync::watch::channel(None::<i64>);
        let (events, name) = (who.events.clone(), key.to_owned());
        let options = options(a)?.on_stop(move |request| {
            let (events, key, mut grant) = (events.clone(), name.clone(), grant.clone());
            // The news may come before the grant is here.
            tokio::spawn(async move {
                let token = grant.wait_for(Option::is_some).await.map(|token| *token).unwrap_or_default();
                let _ = events.send(json!({"event": "stop", "key": key, "token": token, "reason": request.reason}));
            });
        });
        match who.client.acquire(key, options).await {
            Ok(guard) => {
                granting.send_replace(Some(guard.token()));
                let result = granted(&guard);
                who.follow(guard.handle());
                who.locks.lock().unwrap().push(guard);
                Ok(result)
            }
            Err(Error::Skipped(p)) => Ok(json!({"skipped": true, "key": p.key, "result": p.result})),
            Err(e) => Err(e.into()),
        }
    }

    /// Enters a block with a guard, in a task of its own, because the block ends in another step. It is not `Client::lock`, which drops its work at a loss:
    /// such work cannot fail any more. The tests of the client have that form.
    async fn enter(&self, who: &Arc<Party>, key: &str, a: &Arguments) -> Result<Value, Refused> {
        let ((leave, leaves), (entered, enters)) = (oneshot::channel(), oneshot::channel::<Lock>());
        let (client, key, options) = (who.client.clone(), key.to_owned(), options(a)?);
        let mut left = tokio::spawn(async move {
            let guard = client.acquire(&key, options).await?;
            let _ = entered.send(guard.handle());
            let raises = guard.scope(leaves).await == Ok(true);
            let released = guard.release().await;
            if raises {
                return Err(Left::Raised);
            }
            Ok(released.map(drop)?)
        });
        tokio::select! {
            biased;
            Ok(lock) = enters => {
                let result = granted(&lock);
                who.follow(lock);
                self.blocks.lock().unwrap().insert(a.text("as").to_owned(), Block { leave, left });
                Ok(result)
            }
            done = &mut left => match done.map_err(|e| e.to_string())? {
                Err(Left::By(e)) => Err(e.into()),
                _ => Err("the block has ended".to_owned().into()),
            },
        }
    }

    async fn next(&self, of: &str) -> Result<Value, Refused> {
        let watch = self.watches.lock().unwrap().get(of).cloned();
        if let Some(watch) = watch {
            let first = self.first.lock().unwrap().remove(of);
            if let Some(first) = first {
                return Ok(happened(&first));
            }
            return Ok(match watch.lock().await.next().await {
                Some(Ok(event)) => happened(&event),
                _ => json!({"event": "end"}),
            });
        }
        let party = self.parties.lock().unwrap().get(of).cloned().ok_or_else(|| format!("there is no {of}"))?;
        let event = party.heard.lock().await.recv().await;
        event.ok_or_else(|| "no event".to_owned().into())
    }
}

impl Party {
    /// The loss of a lock becomes an event of its session.
    fn follow(self: &Arc<Self>, lock: Lock) {
        let party = self.clone();
        tokio::spawn(async move {
            let loss = lock.lost().await;
            if loss.reason() != "disconnected" {
                let _ = party.events.send(json!({"event": "lost", "key": lock.key(), "token": lock.token(), "reason": loss.reason()}));
            } else if !std::mem::replace(&mut *party.ended.lock().unwrap(), true) {
                let _ = party.events.send(json!({"event": "end"}));
            }
        });
    }

    /// The lock of a grant, the last entry first.
    fn held(&self, key: &str, token: i64) -> Option<Lock> {
        let locks = self.locks.lock().unwrap();
        locks.iter().rev().find(|lock| lock.key() == key && lock.token() == token && lock.released().is_none()).map(Guard::handle)
    }
}

fn options(a: &Arguments) -> Result<Options, Refused> {
    let mut o = Options::new();
    // Without wait_ms it does not wait; -1 is a wait for ever.
    match a.number("wait_ms") {
        Some(-1) => {}
        None => o = o.wait(Duration::ZERO),
        Some(_) => {
            if let Some(wait) = a.ms("wait_ms") {
                o = o.wait(wait?);
            }
        }
    }
    if let Some(ttl) = a.ms("ttl_ms") {
        o = o.ttl(ttl?);
    }
    match a.text("bind") {
        "" | "session" => {}
        "ttl" => o = o.bind_to_ttl(),
        other => return Err(impossible("bind", &format!("{other:?} is none")).into()),
    }
    match a.text("mode") {
        "" | "exclusive" => {}
        "shared" => o = o.shared(),
        other => return Err(impossible("mode", &format!("{other:?} is none")).into()),
    }
    match a.text("on_success") {
        "" | "grant" => {}
        "skip" => o = o.skip_if_done(),
        other => return Err(impossible("on_success", &format!("{other:?} is none")).into()),
    }
    if let Some(n) = a.number("limit") {
        o = o.limit(u32::try_from(n).map_err(|_| impossible("limit", "it must not be negative"))?);
    }
    if a.has("owner") {
        o = o.owner(a.text("owner"));
    }
    if a.0.get("reentrant") == Some(&true.into()) {
        o = o.reentrant();
    }
    if let Some(most) = a.ms("max_hold_ms") {
        o = o.max_hold(most?);
    }
    if let Some(least) = a.ms("min_hold_ms") {
        o = o.min_hold(least?);
    }
    if let Some(data) = a.0.get("data") {
        o = o.data(data);
    }
    if a.has("request_id") {
        o = o.request_id(a.text("request_id"));
    }
    Ok(o)
}

// The client's results and errors in the words of the contract.

fn mode(mode: Mode) -> Value {
    serde_json::to_value(mode).unwrap_or_default()
}

fn granted(l: &Lock) -> Value {
    json!({
        "granted": true, "key": l.key(), "token": l.token(), "session": l.session(), "bind": l.bind(), "reentry": l.reentry(),
        "expires_in_ms": l.expires_in().as_millis() as u64, "waited_ms": l.waited().as_millis() as u64, "mode": mode(l.mode()), "limit": l.limit(), "slot": l.slot(),
    })
}

fn checked(s: &Status) -> Value {
    json!({
        "held": true, "key": s.key, "token": s.token, "reentry": s.reentry, "expires_in_ms": s.expires_in.as_millis() as u64,
        "mode": mode(s.mode), "limit": s.limit, "slot": s.slot, "stopping": stopping(&s.stopping),
    })
}

fn stopping(s: &Option<Stopping>) -> Value {
    s.as_ref().map(|s| json!({"reason": s.reason})).unwrap_or_default()
}

fn holder(h: &Holder) -> Value {
    json!({
        "instance": h.instance, "pod": h.pod, "session": h.session, "owner": h.owner, "held_ms": h.held.as_millis() as u64,
        "expires_in_ms": h.expires_in.as_millis() as u64, "data": h.data, "traceparent": h.traceparent,
        "acquired_at": h.acquired_at.map(|at| humantime::format_rfc3339(at).to_string()),
    })
}

fn shown(i: &LockInfo) -> Value {
    let holders: Vec<_> = i
        .holders
        .iter()
        .map(|h| {
            let mut one = holder(&h.holder);
            (one["token"], one["slot"], one["stopping"]) = (h.token.into(), h.slot.into(), stopping(&h.stopping));
            one
        })
        .collect();
    json!({
        "key": i.key, "type": i.kind, "state": if i.held { "held" } else { "free" }, "mine": i.mine, "token": i.token, "mode": i.mode.map(mode),
        "limit": i.limit, "holders_count": i.holders_count, "holder": i.holder.as_ref().map(holder), "kept": i.kept, "holders": holders,
        "queue_length": i.queue_length, "stopping": stopping(&i.stopping),
    })
}

fn happened(e: &Event) -> Value {
    if let Some(lock) = &e.lock {
        let mut state = shown(lock);
        state["event"] = "state".into();
        return state;
    }
    let mut m = json!({"event": e.kind, "key": e.key, "token": e.token});
    match e.kind.as_str() {
        "acquired" => {
            (m["mode"], m["limit"], m["slot"], m["holder"]) = (e.mode.map(mode).into(), e.limit.into(), e.slot.into(), e.holder.as_ref().map(holder).into())
        }
        "released" => (m["outcome"], m["result"]) = (serde_json::to_value(e.outcome).unwrap_or_default(), e.result.clone()),
        "stopping" => m["reason"] = e.stopping.as_ref().and_then(|s| s.reason.clone()).into(),
        _ => {}
    }
    m
}

fn refused(e: &Error) -> Value {
    let p = e.problem();
    let mut m = json!({
        "error": p.code, "detail": p.detail, "kept": p.kept, "holders_count": p.holders_count, "holder": p.holder.as_ref().map(holder),
        "mode": p.mode.map(mode), "limit": p.limit, "queue_length": p.queue_length, "queue_position": p.queue_position, "waited_ms": p.waited.as_millis() as u64,
    });
    for (name, value) in [("key", &p.key), ("reason", &p.reason)] {
        if !value.is_empty() {
            m[name] = value.clone().into();
        }
    }
    if p.reentry != 0 {
        m["reentry"] = p.reentry.into();
    }
    m
}
