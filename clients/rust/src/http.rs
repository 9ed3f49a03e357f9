//! HTTP/1.1 on one connection. A call owns its connection until it has the whole answer, so a call that is dropped in the middle closes it, and no other
//! call can get the rest of its answer.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;

/// The largest head of an answer.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 64;
const READ: usize = 16 << 10;

/// A socket, with TLS or without.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// The right to make a connection, until its first request was sent.
pub(crate) type Turn = Option<OwnedSemaphorePermit>;

/// One connection.
pub(crate) struct Conn {
    io: Box<dyn Io>,
    turn: Turn,
    /// What was read and not used.
    rest: Vec<u8>,
}

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub status: u16,
    pub retry_after: Option<u64>,
    pub framing: Framing,
    /// The connection can have another call after the body.
    pub keep: bool,
}

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Framing {
    /// So many bytes are left.
    Length(u64),
    /// So many bytes are left of this chunk.
    Chunked(u64),
    /// At the end of the connection.
    Close,
    /// It is read.
    Done,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) struct Broken {
    pub error: io::Error,
    /// Nothing of an answer had come.
    pub silent: bool,
    /// A part of the call was sent, so the sidecar may have it.
    pub began: bool,
}

fn malformed(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it closed the connection")
}

impl Conn {
    pub fn new(io: Box<dyn Io>, turn: Turn) -> Conn {
        Conn { io, turn, rest: Vec::new() }
    }

    /// Reports whether the sidecar has kept the connection: it sends nothing without a call.
    pub async fn is_open(&mut self) -> bool {
        let mut byte = [0; 1];
        let io = &mut self.io;
        self.rest.is_empty() && poll_fn(|cx| Poll::Ready(Pin::new(&mut *io).poll_read(cx, &mut ReadBuf::new(&mut byte)).is_pending())).await
    }

    /// Sends a call, and reads the head of its answer.
    pub async fn send(&mut self, request: &[u8]) -> Result<Head, Broken> {
        let (sent, written) = self.write(request).await;
        self.turn = None;
        // A sidecar that refuses a call may answer before it has read all of it.
        match (self.head().await, written) {
            (Ok(head), _) => Ok(head),
            (Err(broken), Err(error)) if broken.silent => Err(Broken { error, silent: true, began: sent > 0 }),
            (Err(broken), _) => Err(broken),
        }
    }

    /// Returns also how many bytes were sent.
    async fn write(&mut self, request: &[u8]) -> (usize, io::Result<()>) {
        let mut sent = 0;
        while sent < request.len() {
            match self.io.write(&request[sent..]).await {
                Ok(0) => return (sent, Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => sent += n,
                Err(e) => return (sent, Err(e)),
            }
        }
        (sent, self.io.flush().await)
    }

    async fn head(&mut self) -> Result<Head, Broken> {
        loop {
            match parse(&self.rest) {
                Ok(Some((head, length))) => {
                    self.rest.drain(..length);
                    if !(100..200).contains(&head.status) {
                        return Ok(head);
                    }
                }
                Ok(None) if self.rest.len() > MAX_HEAD => {
                    return Err(Broken { error: malformed("the head of the answer is too large"), silent: false, began: true })
                }
                Ok(None) => {
                    if let Err(error) = self.fill().await {
                        return Err(Broken { error, silent: self.rest.is_empty(), began: true });
                    }
                }
                Err(error) => return Err(Broken { error, silent: false, began: true }),
            }
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.rest.reserve(READ);
        match self.io.read_buf(&mut self.rest).await? {
            0 => Err(ended()),
            _ => Ok(()),
        }
    }

    /// Reads a whole body; `None` if it is longer than the limit.
    pub async fn body(&mut self, mut framing: Framing, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let mut body = Vec::new();
        while self.part(&mut framing, &mut body).await? {
            if body.len() > limit {
                return Ok(None);
            }
        }
        Ok(Some(body))
    }

    /// Reads some more of a body; false at its end.
    pub async fn part(&mut self, framing: &mut Framing, into: &mut Vec<u8>) -> io::Result<bool> {
        if *framing == Framing::Chunked(0) {
            *framing = self.chunk().await?;
        }
        let left = match *framing {
            Framing::Done | Framing::Length(0) => return Ok(false),
            Framing::Length(left) | Framing::Chunked(left) => left,
            Framing::Close => u64::MAX,
        };
        if self.rest.is_empty() {
            match self.fill().await {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && *framing == Framing::Close => return Ok(false),
                other => other?,
            }
        }
        let n = self.rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        into.extend(self.rest.drain(..n));
        match framing {
            Framing::Length(left) => *left -= n as u64,
            Framing::Chunked(left) => {
                *left -= n as u64;
                if *left == 0 && !self.line().await?.is_empty() {
                    return Err(malformed("a chunk is longer than it says"));
                }
            }
            Framing::Close | Framing::Done => {}
        }
        Ok(true)
    }

    /// Reads the size of the next chunk, and behind the last one the trailers.
    async fn chunk(&mut self) -> io::Result<Framing> {
        let line = self.line().await?;
        let size = line.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
        let size =
            std::str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok()).ok_or_else(|| malformed("the size of a chunk is no number"))?;
        if size > 0 {
            return Ok(Framing::Chunked(size));
        }
        while !self.line().await?.is_empty() {}
        Ok(Framing::Done)
    }

    /// Reads a line without its end.
    async fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.rest.iter().position(|&b| b == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=end).collect();
                line.truncate(line.trim_ascii_end().len());
                return Ok(line);
            }
            if self.rest.len() > MAX_HEAD {
                return Err(malformed("a line of the answer is too long"));
            }
            self.fill().await?;
        }
    }
}

/// Reads a head and its length, if it has come as a whole.
fn parse(text: &[u8]) -> io::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let length = match answer.parse(text) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(e) => return Err(malformed(format!("it does not speak HTTP: {e}"))),
    };
    let status = answer.code.unwrap_or_default();
    let mut head = Head { status, retry_after: None, framing: Framing::Close, keep: answer.version == Some(1) };
    let mut chunked = false;
    for header in answer.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        if header.name.eq_ignore_ascii_case("content-length") {
            head.framing = Framing::Length(value.parse().map_err(|_| malformed("the length of the answer is no number"))?);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.eq_ignore_ascii_case("chunked");
        } else if header.name.eq_ignore_ascii_case("connection") {
            head.keep = head.keep && !value.eq_ignore_ascii_case("close");
        } else if header.name.eq_ignore_ascii_case("retry-after") {
            head.retry_after = value.parse().ok();
        }
    }
    if chunked {
        head.framing = Framing::Chunked(0);
    }
    if matches!(status, 100..=199 | 204 | 304) {
        head.framing = Framing::Done;
    }
    head.keep = head.keep && head.framing != Framing::Close;
    Ok(Some((head, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &'static [u8]) -> Conn {
        Conn::new(Box::new(Slow(text)), None)
    }

    /// One byte at a time.
    struct Slow(&'static [u8]);

    impl AsyncRead for Slow {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut std::task::Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if let Some((first, rest)) = self.0.split_first() {
                buf.put_slice(&[*first]);
                self.0 = rest;
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Slow {
        fn poll_write(self: Pin<&mut Self>, _: &mut std::task::Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(buf.len()))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn answers_are_read_however_they_are_cut() {
        let mut c = of(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-LENGTH: 3\r\nRetry-After: 7\r\n\r\nabcHTTP/1.1 423 Locked\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nde\r\n1\r\nf\r\n0\r\nTrailer: t\r\n\r\nHTTP/1.0 200 OK\r\n\r\nto the end");
        let head = c.send(b"").await.unwrap();
        assert_eq!((head.status, head.retry_after, head.keep), (200, Some(7), true));
        assert_eq!(c.body(head.framing, 100).await.unwrap().unwrap(), b"abc");
        let head = c.send(b"").await.unwrap();
        assert_eq!((head.status, head.keep), (423, true));
        assert_eq!(c.body(head.framing, 100).await.unwrap().unwrap(), b"def");
        let head = c.send(b"").await.unwrap();
        assert!(!head.keep);
        assert_eq!(c.body(head.framing, 100).await.unwrap().unwrap(), b"to the end");
    }

    #[tokio::test]
    async fn half_an_answer_is_an_error() {
        for text in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            let mut c = of(text);
            let head = c.send(b"").await.unwrap();
            assert!(c.body(head.framing, 100).await.is_err(), "{}", String::from_utf8_lossy(text));
        }
        for (text, silent) in [(&b""[..], true), (b"HTTP/1.1 2", false), (b"SSH-2.0-x\r\n", false)] {
            assert_eq!(of(text).send(b"").await.unwrap_err().silent, silent, "{}", String::from_utf8_lossy(text));
        }
        let mut c = of(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n0123456789012345678901234567890");
        let head = c.send(b"").await.unwrap();
        assert_eq!(c.body(head.framing, 20).await.unwrap(), None);
    }
}
