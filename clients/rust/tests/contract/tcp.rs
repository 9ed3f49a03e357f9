//! Sidecars over TCP, with TLS and a token: CONTRACT_OVER=tcp.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use locksidecar::{testing::Sidecar, Builder, Client};

/// The files of all sidecars, and of their clients.
pub struct Tcp(PathBuf);

impl Tcp {
    pub fn new() -> Tcp {
        let tcp = Tcp(std::env::temp_dir().join(format!("ls-rst-{}-contract", std::process::id())));
        fs::create_dir(&tcp.0).unwrap();
        // It is its own CA.
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        for (name, content) in [("cert", own.cert.pem()), ("key", own.signing_key.serialize_pem()), ("token", "0123456789abcdef0123456789abcdef".to_owned())] {
            fs::write(tcp.0.join(name), content).unwrap();
            fs::set_permissions(tcp.0.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
        tcp
    }

    /// The settings of a sidecar. Its log has to say the port.
    pub fn settings(&self) -> Vec<(String, String)> {
        let file = |name: &str| self.0.join(name).to_string_lossy().into_owned();
        [
            ("TCP_ADDR", "127.0.0.1:0".to_owned()),
            ("TCP_TLS_CERT_FILE", file("cert")),
            ("TCP_TLS_KEY_FILE", file("key")),
            ("TCP_TOKEN_FILE", file("token")),
            ("LOG_LEVEL", "info".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// A client of a sidecar.
    pub fn builder(&self, sidecar: &Sidecar) -> Builder {
        let end = Instant::now() + Duration::from_secs(60);
        let port = loop {
            let port = sidecar.log().lines().find_map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).ok()?;
                (line["msg"] == "serving").then_some(())?;
                line["tcp"].as_str()?.rsplit(':').next()?.parse::<u16>().ok()
            });
            if let Some(port) = port {
                break port;
            }
            assert!(Instant::now() < end, "no port in its log: {}", sidecar.log());
            std::thread::sleep(Duration::from_millis(5)); // another process tells nobody
        };
        Client::builder().url(format!("https://localhost:{port}")).token_file(self.0.join("token")).ca_file(self.0.join("cert"))
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
