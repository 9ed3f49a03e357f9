//! Runs the contract suite through this client, on the stores of CONTRACT_STORES: clients/contract/README.md. Its argument is a part of the names of the cases
//! to run. With CONTRACT_OVER=tcp the client calls the sidecar over TCP.

#[path = "../common/store.rs"]
mod store;

mod matching;
mod player;
mod tcp;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use locksidecar::{testing::Sidecar, Client};
use serde::Deserialize;
use serde_json::Value;

/// How many files run at the same time: they wait most of it.
const AT_A_TIME: usize = 4;
const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../contract/cases");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(skip)]
    name: String,
    #[allow(dead_code)]
    about: String,
    #[serde(default)]
    sidecar: std::collections::HashMap<String, String>,
    #[serde(default = "yes")]
    ready: bool,
    cases: Vec<Case>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    #[serde(default)]
    features: Vec<String>,
    steps: Vec<serde_json::Map<String, Value>>,
}

/// The cases of one store.
#[derive(Default)]
struct Tally {
    passed: AtomicUsize,
    not_run: AtomicUsize,
    failed: AtomicUsize,
}

fn main() {
    // cargo test has flags of its own.
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let mut files: Vec<File> = std::fs::read_dir(CASES)
        .unwrap()
        .flatten()
        .filter(|file| file.path().extension().is_some_and(|ending| ending == "yaml"))
        .map(|file| {
            let text = std::fs::read_to_string(file.path()).unwrap();
            let name = file.file_name().into_string().unwrap();
            File { name: name.clone(), ..serde_yaml_ng::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}")) }
        })
        .collect();
    assert!(!files.is_empty(), "there are no cases in {CASES}");
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let given: Option<std::collections::HashMap<String, String>> =
        std::env::var("CONTRACT_STORE").ok().filter(|text| !text.is_empty()).map(|text| serde_json::from_str(&text).expect("CONTRACT_STORE"));
    let stores = std::env::var("CONTRACT_STORES").ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "memory postgres etcd mysql redis".into());
    let stores = if given.is_some() { "given" } else { &stores };
    let tcp = std::env::var("CONTRACT_OVER").is_ok_and(|over| over == "tcp").then(tcp::Tcp::new);
    let over = if tcp.is_some() { " over TCP" } else { "" };
    let mut failed = false;
    for (n, name) in stores.split_whitespace().enumerate() {
        let server = given.is_none().then(|| store::Store::start(name));
        let settings = given.clone().unwrap_or_else(|| [("STORE_URL".to_owned(), server.as_ref().unwrap().url.clone())].into());
        let tally = Tally::default();
        // A file that names its own store runs once.
        let files = Mutex::new(files.iter().filter(|file| !file.sidecar.contains_key("STORE_URL") || n == 0 && given.is_none()).collect::<Vec<_>>());
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| loop {
                    let Some(file) = files.lock().unwrap().pop() else { return };
                    play(file, &settings, tcp.as_ref(), &only, &tally);
                });
            }
        });
        let counts = [&tally.passed, &tally.not_run, &tally.failed].map(|n| n.load(Ordering::SeqCst));
        println!("contract, rust, {name}{over}: {} passed, {} not run, {} failed", counts[0], counts[1], counts[2]);
        failed |= counts[1] + counts[2] > 0 || counts[0] == 0;
    }
    println!("contract, rust{over}: {}", if failed { "FAILED" } else { "ok" });
    drop(tcp); // exit does not
    std::process::exit(failed.into());
}

fn play(file: &File, store: &std::collections::HashMap<String, String>, tcp: Option<&tcp::Tcp>, only: &str, tally: &Tally) {
    let cases: Vec<_> = file.cases.iter().filter(|case| case.name.contains(only)).collect();
    if cases.is_empty() {
        return;
    }
    let mut settings: std::collections::HashMap<&str, &str> = [("LOG_LEVEL", "warn"), ("ALLOW_FORCE", "false")].into();
    settings.extend(store.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    settings.insert("NAMESPACE", &file.name);
    settings.extend(file.sidecar.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let over = tcp.map(tcp::Tcp::settings).unwrap_or_default();
    settings.extend(over.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let sidecar = Arc::new(Sidecar::idle(&settings.into_iter().collect::<Vec<_>>()));
    if file.ready {
        sidecar.run();
    } else {
        sidecar.run_unready();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let at = tcp.map_or_else(|| Client::builder().socket(sidecar.socket()), |tcp| tcp.builder(&sidecar));
    let description = runtime.block_on(sidecar.client().describe()).unwrap();
    for case in cases {
        let missing: Vec<_> = case.features.iter().filter(|feature| !description.has(feature)).cloned().collect();
        if !missing.is_empty() {
            tally.not_run.fetch_add(1, Ordering::SeqCst);
            println!("not run: {}: {}: the sidecar lacks {}", file.name, case.name, missing.join(", "));
            continue;
        }
        match runtime.block_on(player::play(&sidecar, &at, &case.steps)) {
            Ok(()) => drop(tally.passed.fetch_add(1, Ordering::SeqCst)),
            Err(wrong) => {
                tally.failed.fetch_add(1, Ordering::SeqCst);
                println!("FAILED: {}: {}: {wrong}", file.name, case.name);
            }
        }
    }
}
