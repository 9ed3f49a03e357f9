//! What any client has to do at the least: the same requests, with constant headers, on kept connections of the sidecar's socket. It reads nothing of an answer
//! but its length, its status and its token. So it shows what the hop through the sidecar costs without a client.

use std::io;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A session, and the connections of its calls.
#[derive(Clone)]
pub struct Bare(Arc<Inner>);

struct Inner {
    path: String,
    session: String,
    kept: Mutex<Vec<UnixStream>>,
    /// Its end is that of the session.
    _stream: UnixStream,
}

/// The token of a lock.
pub type Token = String;

impl Bare {
    /// Opens a session.
    pub async fn open(path: &str) -> io::Result<Bare> {
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}").await?;
        let mut text = String::new();
        while after(&text, "\"session\":\"").is_none() {
            let mut part = [0; 4096];
            let n = stream.read(&mut part).await?;
            if n == 0 {
                return Err(io::Error::other(text));
            }
            text.push_str(&String::from_utf8_lossy(&part[..n]));
        }
        let session = after(&text, "\"session\":\"").unwrap_or_default().split('"').next().unwrap_or_default().to_owned();
        Ok(Bare(Arc::new(Inner { path: path.to_owned(), session, kept: Mutex::default(), _stream: stream })))
    }

    /// Acquires a key without a wait.
    pub async fn acquire(&self, key: &str) -> io::Result<Option<Token>> {
        match self.call("PUT", &format!("/v1/locks/{key}"), "{\"wait_ms\":0}").await? {
            (200, text) => Ok(after(&text, "\"token\":").and_then(|rest| rest.split([',', '}']).next()).map(str::to_owned)),
            (423, _) => Ok(None),
            (status, text) => Err(io::Error::other(format!("status {status}: {text}"))),
        }
    }

    /// Releases a key.
    pub async fn release(&self, key: &str, token: &Token) -> io::Result<()> {
        match self.call("POST", &format!("/v1/locks/{key}/release"), &format!("{{\"token\":{token}}}")).await? {
            (200, _) => Ok(()),
            (status, text) => Err(io::Error::other(format!("status {status}: {text}"))),
        }
    }

    async fn call(&self, method: &str, target: &str, body: &str) -> io::Result<(u16, String)> {
        let kept = self.0.kept.lock().unwrap().pop();
        let mut conn = match kept {
            Some(conn) => conn,
            None => UnixStream::connect(&self.0.path).await?,
        };
        let request =
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nLock-Session: {}\r\nContent-Length: {}\r\n\r\n{body}", self.0.session, body.len());
        conn.write_all(request.as_bytes()).await?;
        let (mut buffer, mut n) = ([0; 4096], 0);
        loop {
            let more = conn.read(&mut buffer[n..]).await?;
            if more == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            n += more;
            let text = std::str::from_utf8(&buffer[..n]).map_err(io::Error::other)?;
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length: usize = after(head, "Content-Length: ").and_then(|rest| rest.lines().next()).and_then(|length| length.parse().ok()).unwrap_or_default();
            if body.len() >= length {
                let status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_default();
                let answer = (status, body.to_owned());
                self.0.kept.lock().unwrap().push(conn);
                return Ok(answer);
            }
        }
    }
}

fn after<'a>(text: &'a str, what: &str) -> Option<&'a str> {
    text.split_once(what).map(|(_, rest)| rest)
}
