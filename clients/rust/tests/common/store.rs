//! The server of a store, which the contract suite's own program starts.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

pub struct Store {
    pub url: String,
    child: Child,
}

impl Store {
    pub fn start(name: &str) -> Store {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../contract/curl/processes.py");
        let mut child = Command::new("python3").args([program, name]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        assert!(!url.is_empty(), "the server of {name} did not start");
        Store { url: url.trim().to_owned(), child }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        drop(self.child.stdin.take()); // it ends with its input
        let _ = self.child.wait();
    }
}
