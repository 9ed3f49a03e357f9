//! Over TCP, with TLS and without.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{lost, until, within};
use locksidecar::{testing::Sidecar, Builder, Client, Error, Options};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";

/// Files of one test.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Files {
        let folder = std::env::temp_dir().join(format!("ls-rst-{}-{name}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Files(folder)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A sidecar with a certificate.
fn sidecar(files: &Files, ca: &Authority, name: &str, year: i32) -> Sidecar {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let cert = params.signed_by(&key, ca).unwrap();
    let of = |what: &str, content: &str| files.write(&format!("{what}-{name}-{year}"), content).to_string_lossy().into_owned();
    let (cert, key, tokens) = (of("cert", &cert.pem()), of("key", &key.serialize_pem()), of("tokens", TOKEN));
    Sidecar::start(&[("TCP_ADDR", "127.0.0.1:0"), ("TCP_TLS_CERT_FILE", &cert), ("TCP_TLS_KEY_FILE", &key), ("TCP_TOKEN_FILE", &tokens)])
}

/// The port at which a sidecar listens. Its log says it, soon after its first answer.
async fn port(sidecar: &Sidecar) -> u16 {
    let find = || {
        sidecar.log().lines().find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            (line["msg"] == "serving").then_some(())?;
            line["tcp"].as_str()?.rsplit(':').next()?.parse().ok()
        })
    };
    until("it serves TCP", || async { find().map(|_: u16| ()).ok_or_else(|| sidecar.log()) }).await;
    find().unwrap()
}

fn builder(url: &str, token: &Path, ca: &Path) -> Builder {
    Client::builder().url(url).token_file(token).ca_file(ca).reconnect(Duration::ZERO)
}

/// Everything works over TLS as on the socket: locks, waits, losses.
#[tokio::test]
async fn tls() {
    let (files, ca) = (Files::new("tls"), authority());
    let sidecar = sidecar(&files, &ca, "localhost", 2100);
    let (token, ca) = (files.write("token", format!("{TOKEN}\n{OTHER}\n")), files.write("ca", ca.pem()));
    let settings = builder(&format!("https://localhost:{}", port(&sidecar).await), &token, &ca);
    let (one, two) = (settings.clone().build(), settings.build());
    let lock = one.acquire("k", Options::new()).await.unwrap();
    assert!(two.try_acquire("k", Options::new()).await.unwrap().is_none());
    let waits = tokio::spawn(async move { two.acquire("k", Options::new()).await.unwrap().release().await });
    common::waits_for(&sidecar.client(), "k", 1).await;
    lock.release().await.unwrap();
    within("the wait", waits).await.unwrap().unwrap();
    let lock = one.acquire("k", Options::new()).await.unwrap();
    sidecar.lose("k");
    lost(&lock).await;
    let lock = one.acquire("k", Options::new()).await.unwrap();
    sidecar.kill();
    lost(&lock).await;
    assert!(!sidecar.log().contains(TOKEN), "the log shows the token");
}

// Proves: client many connections
/// Above 64 connections that have shown no token, the sidecar ends the oldest.
#[tokio::test(flavor = "multi_thread")]
async fn an_app_begins_with_many_calls() {
    let (files, ca) = (Files::new("many"), authority());
    let sidecar = sidecar(&files, &ca, "localhost", 2100);
    let (token, ca) = (files.write("token", TOKEN), files.write("ca", ca.pem()));
    let client = builder(&format!("https://localhost:{}", port(&sidecar).await), &token, &ca).build();
    let calls: Vec<_> = (0..300)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.acquire(&format!("many:{n}"), Options::new()).await?.release().await })
        })
        .collect();
    for call in calls {
        within("a call", call).await.unwrap().unwrap();
    }
}

/// A token is read again when its file changes, so it is replaced without a restart.
#[tokio::test]
async fn a_token_is_read_again() {
    let files = Files::new("token");
    let tokens = files.write("tokens", TOKEN).to_string_lossy().into_owned();
    let sidecar = Sidecar::start(&[("TCP_ADDR", "127.0.0.1:0"), ("TCP_TOKEN_FILE", &tokens)]);
    let file = files.write("token", OTHER);
    let client = Client::builder().url(format!("http://127.0.0.1:{}", port(&sidecar).await)).token_file(&file).build();
    assert!(matches!(client.get("k").await, Err(Error::Forbidden(_))));
    fs::write(&file, TOKEN).unwrap();
    until("the right token", || async { client.get("k").await.map(drop).map_err(|e| e.to_string()) }).await;
}

/// An error says what is wrong and which setting to look at. It never contains a token.
#[tokio::test]
async fn mistakes() {
    let (files, ca, other) = (Files::new("mistakes"), authority(), authority());
    let good = sidecar(&files, &ca, "localhost", 2100);
    let expired = sidecar(&files, &ca, "localhost", 2001);
    let elsewhere = sidecar(&files, &ca, "sidecar.example", 2100);
    let tokens = files.write("tokens", TOKEN).to_string_lossy().into_owned();
    let plain = Sidecar::start(&[("TCP_ADDR", "127.0.0.1:0"), ("TCP_TOKEN_FILE", &tokens)]);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (right, wrong, odd) = (files.write("right", TOKEN), files.write("wrong", OTHER), files.write("odd", "s3cret\rX: y"));
    let (ca, other, no_ca) = (files.write("ca", ca.pem()), files.write("other", other.pem()), files.write("none", "no certificate"));
    let at = |port: u16| format!("https://localhost:{port}");
    let good_at = at(port(&good).await);
    let cases: Vec<(&str, Builder, &str, &[&str])> = vec![
        ("wrong token", builder(&good_at, &wrong, &ca), "unauthorized", &["LOCKSIDECAR_TCP_TOKEN_FILE"]),
        ("no token", Client::builder().url(&good_at).ca_file(&ca), "unauthorized", &["LOCKSIDECAR_TCP_TOKEN_FILE"]),
        ("wrong CA", builder(&good_at, &right, &other), "unreachable", &["LOCKSIDECAR_CA_FILE"]),
        ("the system's CA", Client::builder().url(&good_at).token_file(&right), "unreachable", &["LOCKSIDECAR_CA_FILE"]),
        ("no CA file", builder(&good_at, &right, Path::new("/no/ca")), "unreachable", &["Builder::ca_file", "/no/ca"]),
        ("no CA in it", builder(&good_at, &right, &no_ca), "unreachable", &["Builder::ca_file", "no certificate"]),
        ("expired", builder(&at(port(&expired).await), &right, &ca), "unreachable", &["not valid now", "expired"]),
        ("another name", builder(&at(port(&elsewhere).await), &right, &ca), "unreachable", &["sidecar.example", "LOCKSIDECAR_URL"]),
        ("plain to TLS", Client::builder().url(good_at.replace("https", "http")).token_file(&right), "invalid_request", &["https://"]),
        ("TLS to plain", builder(&at(port(&plain).await), &right, &ca), "unreachable", &["TLS", "LOCKSIDECAR_URL"]),
        ("nobody listens", builder(&at(nobody), &right, &ca), "unreachable", &["LOCKSIDECAR_TCP_ADDR", "LOCKSIDECAR_URL"]),
        ("no token file", builder(&good_at, Path::new("/no/token"), &ca), "invalid_request", &["Builder::token_file", "/no/token"]),
        ("odd token", builder(&good_at, &odd, &ca), "invalid_request", &["Builder::token_file"]),
    ];
    for (name, settings, code, says) in cases {
        let client = settings.reconnect(Duration::ZERO).build();
        for e in [client.connect().await.unwrap_err(), client.get("k").await.unwrap_err()] {
            let text = format!("{e} {e:?} {client:?}");
            assert_eq!(e.code(), code, "{name}: {text}");
            for said in says {
                assert!(e.to_string().contains(said), "{name}: no {said:?} in {e}");
            }
            assert!(!text.contains("s3cret") && !text.contains(TOKEN) && !text.contains(OTHER), "{name} shows a secret: {text}");
        }
    }
}
