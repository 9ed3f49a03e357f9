//! A real sidecar for the tests of an app, without a database, which misbehaves on request.
//!
//! ```no_run
//! use locksidecar::{testing::Sidecar, Error};
//! # struct Report;
//! # impl Report { async fn wait(self) -> Result<(), Error> { Ok(()) } }
//! # async fn start_report(_: locksidecar::Client) -> Report { Report }
//!
//! # async fn example() {
//! let sidecar = Sidecar::start(&[]);
//! let report = start_report(sidecar.client()).await; // holds the lock report:daily
//! sidecar.lose("report:daily"); // or kill, hang, stop
//! assert!(matches!(report.wait().await, Err(Error::LockLost(_))));
//! # }
//! ```
//!
//! It needs the program locksidecar, in `LOCKSIDECAR_BINARY`, else in `PATH`, and a Unix system. Its calls block, and the client has a thread of its own, so
//! they work in each kind of test. They panic when something is wrong with the sidecar.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::transport::lock_path;
use crate::{Builder, Client};

/// For what a sidecar must do at once. A busy machine may need long.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(5);

/// A sidecar in a process of its own, on a socket of its own. Its store is `memory://`, so its locks end with it. Anybody may break its locks, and a stop waits
/// for nobody. It ends when it is dropped.
#[derive(Debug)]
pub struct Sidecar {
    folder: PathBuf,
    socket: PathBuf,
    settings: Vec<(String, String)>,
    child: Mutex<Option<Child>>,
}

impl Sidecar {
    /// Starts a sidecar, and returns when it grants locks. Its settings are those of docs/configuration.md, without the prefix: `("TTL", "2s")`.
    pub fn start(settings: &[(&str, &str)]) -> Sidecar {
        let sidecar = Sidecar::idle(settings);
        sidecar.run();
        sidecar
    }

    /// Makes a sidecar that does not run yet.
    pub fn idle(settings: &[(&str, &str)]) -> Sidecar {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        // Short, because a socket's path has at most 107 bytes.
        let folder = std::env::temp_dir().join(format!("ls-rs-{}-{}", std::process::id(), LAST.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Sidecar { socket: folder.join("s.sock"), folder, settings, child: Mutex::new(None) }
    }

    /// For `Builder::socket`, and `LOCKSIDECAR_SOCKET` of other processes.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Starts it again, after [`Sidecar::kill`] or [`Sidecar::stop`], and returns when it grants locks.
    pub fn run(&self) {
        self.run_until("/readyz");
    }

    /// [`Sidecar::run`] that returns as soon as the sidecar answers.
    pub fn run_unready(&self) {
        self.run_until("/v1");
    }

    fn run_until(&self, path: &str) {
        let log = |file: &Path| File::options().create(true).append(true).open(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut settings = vec![("STORE_URL".to_owned(), "memory://".to_owned()), ("ALLOW_FORCE".into(), "true".into()), ("DRAIN_TIMEOUT".into(), "0s".into())];
        settings.extend(self.settings.clone());
        let (out, err) = (log(&self.folder.join("log")), log(&self.folder.join("log")));
        let child = Command::new(binary())
            .arg("serve")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("LOCKSIDECAR_SOCKET", &self.socket)
            .envs(settings.iter().map(|(name, value)| (format!("LOCKSIDECAR_{name}"), value)))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", binary()));
        *crate::lock(&self.child) = Some(child);
        self.until(&format!("the sidecar answers {path}"), || {
            let ended = crate::lock(&self.child).as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                panic!("the sidecar has ended: {status}. Its log:\n{}", self.log());
            }
            self.ask("GET", path).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
        });
    }

    /// Makes a call on a connection of its own, and returns the answer as it is.
    fn ask(&self, method: &str, path: &str) -> io::Result<String> {
        let mut conn = UnixStream::connect(&self.socket)?;
        conn.set_read_timeout(Some(PATIENCE))?;
        write!(conn, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
        let mut answer = String::new();
        conn.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Waits for a condition of another process, which tells nobody.
    fn until(&self, what: &str, is: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is() {
            assert!(Instant::now() < end, "waiting until {what}: not within {PATIENCE:?}. Its log:\n{}", self.log());
            std::thread::sleep(PAUSE);
        }
    }

    /// A client of this sidecar.
    pub fn client(&self) -> Client {
        self.client_with(Client::builder())
    }

    /// A client with more settings; its socket is set.
    pub fn client_with(&self, builder: Builder) -> Client {
        builder.socket(&self.socket).build()
    }

    /// Takes a lock from its holder, who is told that it is lost: `forced`. Of a shared lock or a semaphore, all holders lose it.
    pub fn lose(&self, key: &str) {
        let answer = self.ask("DELETE", &lock_path(key, "?force=true")).unwrap_or_else(|e| panic!("to lose {key}: {e}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "to lose {key}: {answer}");
    }

    /// Kills the sidecar, as a crash would. Until [`Sidecar::run`] it is away.
    pub fn kill(&self) {
        self.end("KILL");
    }

    /// Stops the sidecar as Kubernetes would, and returns when it is gone. Its holders lose their locks.
    pub fn stop(&self) {
        self.end("TERM");
    }

    /// Lets the sidecar hang until [`Sidecar::resume`]: calls are accepted and not answered, and leases run out, after 15 seconds by default; the setting
    /// `TTL` shortens this.
    pub fn hang(&self) {
        self.signal("STOP");
        let Some(id) = self.id() else { return };
        // Without these files, it is another system than Linux.
        self.until("it is stopped", || {
            let tasks = fs::read_dir(format!("/proc/{id}/task")).map(|tasks| tasks.flatten().collect::<Vec<_>>()).unwrap_or_default();
            tasks.iter().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.is_empty() || stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
            })
        });
    }

    /// Lets a sidecar go on that hangs.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Sends a signal to the process: `TERM`, for example.
    pub fn signal(&self, name: &str) {
        if let Some(id) = self.id() {
            let _ = Command::new("kill").args(["-s", name, &id.to_string()]).stderr(Stdio::null()).status();
        }
    }

    fn id(&self) -> Option<u32> {
        crate::lock(&self.child).as_ref().map(Child::id)
    }

    fn end(&self, signal: &str) {
        self.resume(); // it may hang
        self.signal(signal);
        let child = crate::lock(&self.child).take();
        if let Some(mut child) = child {
            let _ = child.wait();
        }
    }

    /// What the sidecar has written.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.end("KILL");
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The program: `LOCKSIDECAR_BINARY`, else in `PATH`.
fn binary() -> String {
    if let Some(named) = std::env::var("LOCKSIDECAR_BINARY").ok().filter(|named| !named.is_empty()) {
        return named;
    }
    let found = std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("locksidecar").is_file()));
    assert!(
        found,
        "there is no program locksidecar in PATH: take it from an archive of a release, or `make build` in a checkout, and let LOCKSIDECAR_BINARY name it"
    );
    "locksidecar".to_owned()
}
