use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::error::{invalid, Error, Result};
use crate::http::{Conn, Io, Turn};

/// The socket in pods, which have its folder. The sidecar has the same rule.
const POD_SOCKET: &str = "/run/locksidecar/locksidecar.sock";
/// The socket of other machines, under the home folder.
const HOME_SOCKET: &str = ".locksidecar/locksidecar.sock";
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of Linux, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// The most connections over TCP that have sent no request yet. Above 64 that have shown no token, the sidecar ends the oldest.
const MAX_UNSENT: usize = 16;

/// A peer that vanishes closes nothing. So the system probes one that says nothing, and ends the connection when nothing has come for so long.
const PROBE: Duration = Duration::from_secs(3);
const LONGEST_SILENCE: Duration = Duration::from_secs(15);

/// A value, and where it was set, for messages.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub name: &'static str,
    pub value: String,
}

/// What the code has set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    pub socket: Option<PathBuf>,
    pub url: Option<String>,
    pub token_file: Option<PathBuf>,
    pub ca_file: Option<PathBuf>,
}

/// Where the sidecar listens, and how it is called there.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// The path of a socket, or a URL.
    pub name: String,
    pub place: Place,
    pub ca: Option<Setting>,
    token: Option<TokenFile>,
    /// Over TCP each connection has a permit until its first request.
    unsent: Arc<Semaphore>,
}

#[derive(Debug, Clone)]
pub(crate) enum Place {
    Socket(PathBuf),
    Tcp {
        address: String,
        host: String,
        encrypted: bool,
    },
    /// No call can be made.
    Wrong(Error),
}

fn set(name: &'static str, value: Option<impl Into<String>>) -> Option<Setting> {
    value.map(Into::into).filter(|value: &String| !value.is_empty()).map(|value| Setting { name, value })
}

fn of_path(path: &Option<PathBuf>) -> Option<String> {
    path.as_ref().map(|path| path.to_string_lossy().into_owned())
}

impl Endpoint {
    /// Reads the settings. What is set in code wins over the environment, and a URL over a socket.
    pub fn new(given: &Given, env: impl Fn(&str) -> Option<String>, exists: impl Fn(&Path) -> bool) -> Endpoint {
        let at = |name: String, place| Endpoint { name, place, ca: None, token: None, unsent: Arc::new(Semaphore::new(MAX_UNSENT)) };
        let (url, socket) = (set("Builder::url", given.url.clone()), given.socket.clone().filter(|path| !path.as_os_str().is_empty()));
        let mut endpoint = match (url, socket) {
            (Some(_), Some(_)) => return at("-".to_owned(), Place::Wrong(invalid("Builder::url and Builder::socket are both set; one names the sidecar"))),
            (None, Some(path)) => at(path.to_string_lossy().into_owned(), Place::Socket(path)),
            (Some(url), None) => at(format!("the URL in {}", url.name), parse(&url)),
            (None, None) => match set("LOCKSIDECAR_URL", env("LOCKSIDECAR_URL")) {
                Some(url) => at(format!("the URL in {}", url.name), parse(&url)),
                None => {
                    let path = usual_socket(env("LOCKSIDECAR_SOCKET"), env("HOME"), exists);
                    at(path.to_string_lossy().into_owned(), Place::Socket(path))
                }
            },
        };
        match &endpoint.place {
            Place::Socket(path) => endpoint.name = path.to_string_lossy().into_owned(),
            Place::Wrong(_) => {}
            Place::Tcp { address, encrypted, .. } => {
                endpoint.name = format!("{}://{address}", if *encrypted { "https" } else { "http" });
                endpoint.token = set("Builder::token_file", of_path(&given.token_file))
                    .or_else(|| set("LOCKSIDECAR_TOKEN_FILE", env("LOCKSIDECAR_TOKEN_FILE")))
                    .map(TokenFile::new);
                endpoint.ca = set("Builder::ca_file", of_path(&given.ca_file)).or_else(|| set("LOCKSIDECAR_CA_FILE", env("LOCKSIDECAR_CA_FILE")));
            }
        }
        endpoint
    }

    /// The `Host` of the requests.
    pub fn authority(&self) -> &str {
        match &self.place {
            Place::Tcp { address, .. } => address,
            _ => "localhost",
        }
    }

    /// The header `Authorization`, over TCP with a token.
    pub fn authorization(&self) -> Result<Option<String>> {
        self.token.as_ref().map(TokenFile::header).transpose()
    }

    /// Why no call can be made.
    pub fn check(&self) -> Result<()> {
        match &self.place {
            Place::Wrong(wrong) => Err(wrong.clone()),
            Place::Socket(path) if path.as_os_str().len() > MAX_SOCKET_PATH => Err(crate::error::ours(
                "unreachable",
                "",
                format!("the socket's path {} has {} bytes; allowed: up to {MAX_SOCKET_PATH}, as the system limits it", self.name, path.as_os_str().len()),
            )
            .into()),
            _ => Ok(()),
        }
    }

    /// Waits until another connection may be made over TCP.
    pub async fn turn(&self) -> Turn {
        match self.place {
            Place::Tcp { .. } => self.unsent.clone().acquire_owned().await.ok(),
            _ => None,
        }
    }

    /// Connects, with TLS if the URL says so.
    pub async fn dial(&self, turn: Turn) -> io::Result<Conn> {
        match tokio::time::timeout(DIAL_TIMEOUT, self.connect()).await {
            Ok(io) => Ok(Conn::new(io?, turn)),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {DIAL_TIMEOUT:?}"))),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Io>> {
        match &self.place {
            #[cfg(unix)]
            Place::Socket(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
            #[cfg(not(unix))]
            Place::Socket(_) => Err(io::Error::new(io::ErrorKind::Unsupported, "on this system the client uses no sockets; set LOCKSIDECAR_URL")),
            Place::Tcp { address, host, encrypted } => {
                let stream = TcpStream::connect(address).await?;
                watch(&stream)?;
                if !encrypted {
                    return Ok(Box::new(stream));
                }
                encrypt(stream, host, self.ca.as_ref()).await
            }
            Place::Wrong(wrong) => Err(io::Error::new(io::ErrorKind::InvalidInput, wrong.clone())),
        }
    }

    /// Why there is no connection, and what to look at.
    pub fn what_to_check(&self, error: &io::Error) -> String {
        const SAME: &str = "LOCKSIDECAR_SOCKET is the same for it and for this process";
        let name = &self.name;
        let path = match &self.place {
            _ if is_exhausted(error) => {
                return format!("there is no file descriptor left for a connection to the sidecar at {name}: {}, and each call that waits takes one; raise the limit, or let fewer calls wait at a time", descriptor_limit());
            }
            Place::Tcp { .. } => return self.what_to_check_over_tcp(error),
            Place::Socket(path) => path,
            Place::Wrong(wrong) => return wrong.problem().detail.clone(),
        };
        if std::fs::metadata(path).is_ok_and(|info| !is_socket(&info)) {
            return format!("{name} is not a socket; check LOCKSIDECAR_SOCKET");
        }
        match error.kind() {
            io::ErrorKind::NotFound => {
                format!("no sidecar listens at {name}: there is no such file; check that the sidecar runs (`locksidecar serve`), and that {SAME}")
            }
            io::ErrorKind::ConnectionRefused => {
                format!("no sidecar listens at {name}; check whether it has ended, or is just starting again (its log says why)")
            }
            io::ErrorKind::PermissionDenied => format!("you may not use the socket {name}: {error}; its mode is LOCKSIDECAR_SOCKET_MODE of the sidecar"),
            _ => format!("no connection to the sidecar at {name}: {error}"),
        }
    }

    fn what_to_check_over_tcp(&self, error: &io::Error) -> String {
        let name = &self.name;
        if let Some(text) = what_tls_says(name, error) {
            return text;
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                format!("no sidecar listens at {name}; check that it runs, that its LOCKSIDECAR_TCP_ADDR has this port, and that LOCKSIDECAR_URL is right")
            }
            _ if error.to_string().contains("lookup address") => format!("the host of {name} is not known: {error}; check LOCKSIDECAR_URL"),
            _ => format!("no connection to the sidecar at {name}: {error}; check LOCKSIDECAR_URL, and the network"),
        }
    }
}

/// The socket of a sidecar that was not told another one.
fn usual_socket(given: Option<String>, home: Option<String>, exists: impl Fn(&Path) -> bool) -> PathBuf {
    if let Some(given) = given.filter(|path| !path.is_empty()) {
        return given.into();
    }
    match home.map(PathBuf::from).filter(|home| home.is_absolute()) {
        Some(home) if !exists(Path::new(POD_SOCKET).parent().unwrap_or(Path::new("/"))) => home.join(HOME_SOCKET),
        _ => POD_SOCKET.into(),
    }
}

/// Reads a URL. A URL with a password, which has no use here, is not shown.
fn parse(setting: &Setting) -> Place {
    let url = setting.value.as_str();
    let wrong = |shown: &str| Place::Wrong(invalid(format!("{} is {shown}; allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT", setting.name)));
    if url.contains('@') {
        return wrong("not a URL of a sidecar");
    }
    let shown = format!("{url:?}");
    if url.contains(['?', '#']) || url.chars().any(|c| c.is_control() || c == ' ') {
        return wrong(&shown);
    }
    if let Some(path) = url.strip_prefix("unix://").filter(|path| path.starts_with('/')) {
        return match percent_encoding::percent_decode_str(path).decode_utf8() {
            Ok(path) => Place::Socket(PathBuf::from(path.as_ref())),
            Err(_) => wrong(&shown),
        };
    }
    let (address, encrypted) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
        (Some(rest), _) => (rest, false),
        (_, Some(rest)) => (rest, true),
        _ => return wrong(&shown),
    };
    let address = address.strip_suffix('/').unwrap_or(address);
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() && is_host(host) => {
            Place::Tcp { address: address.to_owned(), host: host.trim_matches(['[', ']']).to_owned(), encrypted }
        }
        _ => wrong(&shown),
    }
}

fn is_host(host: &str) -> bool {
    match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']').is_some_and(|v6| v6.parse::<std::net::Ipv6Addr>().is_ok()),
        None => !host.contains(['/', ':', '[', ']', '\\']),
    }
}

/// Lets the system end a connection to a peer that has vanished.
fn watch(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(PROBE).with_interval(PROBE);
    #[cfg(not(windows))]
    let keepalive = keepalive.with_retries((LONGEST_SILENCE.as_secs() / PROBE.as_secs()) as u32);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(LONGEST_SILENCE))?;
    Ok(())
}

#[cfg(unix)]
fn is_socket(info: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    info.file_type().is_socket()
}

#[cfg(not(unix))]
fn is_socket(_: &std::fs::Metadata) -> bool {
    true
}

/// EMFILE and ENFILE.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

/// Names the limit of this process.
fn descriptor_limit() -> String {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    match most {
        Some(most) => format!("this process may have {most} (ulimit -n)"),
        None => "see ulimit -n".to_owned(),
    }
}

#[cfg(not(feature = "tls"))]
async fn encrypt(_: TcpStream, _: &str, _: Option<&Setting>) -> io::Result<Box<dyn Io>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this program was built without the feature `tls` of the crate locksidecar, which https:// needs"))
}

#[cfg(not(feature = "tls"))]
fn what_tls_says(_: &str, _: &io::Error) -> Option<String> {
    None
}

#[cfg(feature = "tls")]
async fn encrypt(stream: TcpStream, host: &str, ca: Option<&Setting>) -> io::Result<Box<dyn Io>> {
    use tokio_rustls::rustls::pki_types::{pem::PemObject, CertificateDer, ServerName};
    use tokio_rustls::rustls::{crypto, ClientConfig, RootCertStore};
    let mut roots = RootCertStore::empty();
    match ca {
        Some(ca) => {
            let wrong = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
            let text = std::fs::read(&ca.value).map_err(|e| wrong(format!("{} cannot be read: {e}: {}", ca.name, ca.value)))?;
            for certificate in CertificateDer::pem_slice_iter(&text).flatten() {
                roots.add(certificate).map_err(|e| wrong(format!("{} is {:?}, and a certificate of this file cannot be used: {e}", ca.name, ca.value)))?;
            }
            if roots.is_empty() {
                return Err(wrong(format!("{} is {:?}, and this file has no certificate in PEM", ca.name, ca.value)));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

#[cfg(feature = "tls")]
fn what_tls_says(name: &str, error: &io::Error) -> Option<String> {
    use tokio_rustls::rustls::{CertificateError, Error};
    Some(match error.get_ref()?.downcast_ref::<Error>()? {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("the certificate of the sidecar at {name} is of a CA that this process does not trust; LOCKSIDECAR_CA_FILE names the file of the CA")
        }
        Error::InvalidCertificate(e @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
            format!("the certificate of the sidecar at {name} is for another name ({e}); LOCKSIDECAR_URL has to use a name of the certificate")
        }
        Error::InvalidCertificate(e) => format!("the certificate of the sidecar at {name} is not valid now: {e}"),
        Error::InvalidMessage(_) => format!("what listens at {name} does not speak TLS; is it http://, or another port? Check LOCKSIDECAR_URL"),
        _ => return None,
    })
}

/// The least time between two reads of a token's file.
const TOKEN_PAUSE: Duration = Duration::from_secs(1);
const MAX_TOKEN: usize = 512;

/// A file whose first line is the token. It may be replaced while it is used.
struct TokenFile {
    setting: Setting,
    state: Mutex<TokenState>,
}

struct TokenState {
    looked: Option<Instant>,
    token: Result<String>,
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenFile({:?})", self.setting.value) // never the token
    }
}

impl TokenFile {
    fn new(setting: Setting) -> TokenFile {
        TokenFile { setting, state: Mutex::new(TokenState { looked: None, token: Err(invalid("the token was not read")) }) }
    }

    /// The value of a header `Authorization`. The error contains nothing of the file.
    fn header(&self) -> Result<String> {
        let mut state = crate::lock(&self.state);
        if state.looked.is_none_or(|looked| looked.elapsed() >= TOKEN_PAUSE) {
            state.looked = Some(Instant::now());
            let token = self.read();
            if token.is_ok() || state.token.is_err() {
                state.token = token; // a file that is away for a moment changes nothing
            }
        }
        state.token.as_ref().map(|token| format!("Bearer {token}")).map_err(Clone::clone)
    }

    fn read(&self) -> Result<String> {
        let Setting { name, value } = &self.setting;
        let text = std::fs::read(value).map_err(|e| invalid(format!("{name} cannot be read: {e}: {value}")))?;
        let line = text.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii();
        if line.is_empty() || line.len() > MAX_TOKEN || line.iter().any(|b| !b.is_ascii_graphic()) {
            return Err(invalid(format!(
                "{name} is {value:?}, and the first line of this file is no token: it has up to {MAX_TOKEN} printable characters and no space"
            )));
        }
        Ok(String::from_utf8_lossy(line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(given: &Given, env: &[(&str, &str)], pod: bool) -> Endpoint {
        let env: std::collections::HashMap<_, _> = env.iter().copied().collect();
        Endpoint::new(given, |name| env.get(name).map(|v| v.to_string()), |path| pod && path == Path::new("/run/locksidecar"))
    }

    #[test]
    fn the_usual_socket() {
        for (given, home, pod, want) in [
            ("/tmp/x.sock", "/home/me", true, "/tmp/x.sock"),
            ("", "/home/me", true, POD_SOCKET),
            ("", "/home/me", false, "/home/me/.locksidecar/locksidecar.sock"),
            ("", "", false, POD_SOCKET),
            ("", "me", false, POD_SOCKET),
        ] {
            assert_eq!(at(&Given::default(), &[("LOCKSIDECAR_SOCKET", given), ("HOME", home)], pod).name, want);
        }
    }

    /// A URL in code wins over all, a socket in code over the environment, and LOCKSIDECAR_URL over LOCKSIDECAR_SOCKET.
    #[test]
    fn which_address_wins() {
        let url = |url: &str| Given { url: Some(url.to_owned()), ..Given::default() };
        for (given, env_url, want) in [
            (Given::default(), "", "/env"),
            (Given::default(), "http://127.0.0.1:1", "http://127.0.0.1:1"),
            (Given::default(), "unix:///url%20x", "/url x"),
            (Given { socket: Some("/code".into()), ..Given::default() }, "http://127.0.0.1:1", "/code"),
            (url("https://[::1]:2/"), "http://127.0.0.1:1", "https://[::1]:2"),
        ] {
            assert_eq!(at(&given, &[("LOCKSIDECAR_URL", env_url), ("LOCKSIDECAR_SOCKET", "/env")], false).name, want);
        }
    }

    #[test]
    fn wrong_urls_name_the_setting_and_no_password() {
        for url in [
            "https://u:s3cret@localhost:1",
            "https://localhost",
            "https://localhost:1/v1",
            "unix://host/s",
            "localhost:1",
            "ftp://h:1",
            "http://h:99999",
            "http://::1:5",
            "http://h:1?x",
            "http://a/b:1",
            "unix:///%ff",
        ] {
            let endpoint = at(&Given { url: Some(url.to_owned()), ..Given::default() }, &[], false);
            let text = endpoint.check().unwrap_err().to_string();
            assert!(text.contains("Builder::url") && text.contains("https://HOST:PORT") && !text.contains("s3cret"), "{text}");
            let text = at(&Given::default(), &[("LOCKSIDECAR_URL", url)], false).check().unwrap_err().to_string();
            assert!(text.contains("LOCKSIDECAR_URL"), "{text}");
        }
        let both = Given { url: Some("http://h:1".into()), socket: Some("/s".into()), ..Given::default() };
        let text = at(&both, &[], false).check().unwrap_err().to_string();
        assert!(text.contains("Builder::url") && text.contains("Builder::socket"), "{text}");
        let long = Given { socket: Some(format!("/{}", "x".repeat(107)).into()), ..Given::default() };
        assert!(at(&long, &[], false).check().unwrap_err().to_string().contains("up to 107"));
    }
}
