use std::io;

use crate::http::{Conn, Framing};

/// The longest line of a stream is a state with a hundred holders, each with its data.
const MAX_LINE: usize = 4 << 20;

/// Reads server-sent events. Unknown fields and comments of later versions are ignored.
#[derive(Default)]
pub(crate) struct Events {
    /// What has come, from `used` on not yet read.
    text: Vec<u8>,
    used: usize,
    name: String,
    data: Vec<u8>,
}

impl Events {
    pub fn add(&mut self, part: &[u8]) {
        self.text.drain(..self.used);
        self.used = 0;
        self.text.extend_from_slice(part);
    }

    /// The next event with a name, if it has come as a whole.
    pub fn next(&mut self) -> io::Result<Option<(String, Vec<u8>)>> {
        while let Some(length) = self.text[self.used..].iter().position(|&b| b == b'\n') {
            let line = self.text[self.used..self.used + length].to_vec();
            self.used += length + 1;
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if line.is_empty() {
                let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
                if !name.is_empty() {
                    return Ok(Some((name, data)));
                }
                continue;
            }
            let (field, value) = match line.iter().position(|&b| b == b':') {
                Some(colon) => (&line[..colon], &line[colon + 1..]),
                None => (line, &[][..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match field {
                b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
                b"data" => self.data = value.to_vec(),
                _ => {}
            }
        }
        if self.text.len() - self.used > MAX_LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line of the stream is too long"));
        }
        Ok(None)
    }
}

/// An answer of server-sent events.
pub(crate) struct Stream {
    conn: Conn,
    framing: Framing,
    events: Events,
}

impl Stream {
    pub fn new(conn: Conn, framing: Framing) -> Stream {
        Stream { conn, framing, events: Events::default() }
    }

    /// The next event. A stream without any line for so long is over: the sidecar sends a comment every 15 s.
    pub async fn next(&mut self, silence: std::time::Duration) -> io::Result<(String, Vec<u8>)> {
        loop {
            if let Some(event) = self.events.next()? {
                return Ok(event);
            }
            let mut part = Vec::new();
            let more = match tokio::time::timeout(silence, self.conn.part(&mut self.framing, &mut part)).await {
                Ok(more) => more?,
                // This process may itself have been stopped, with lines to read.
                Err(_) => tokio::time::timeout(LAST_LOOK, self.conn.part(&mut self.framing, &mut part))
                    .await
                    .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??,
            };
            if !more {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.events.add(&part);
        }
    }
}

const LAST_LOOK: std::time::Duration = std::time::Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], size: usize) -> Vec<(String, Vec<u8>)> {
        let mut events = Events::default();
        let mut found = Vec::new();
        for part in text.chunks(size) {
            events.add(part);
            while let Some(event) = events.next().unwrap() {
                found.push(event);
            }
        }
        found
    }

    #[test]
    fn events_are_found_whatever_is_between_them() {
        for between in ["", ":\n\n", "id: 7\nretry: 10\n", "event: future\ndata: {}\n\n", ":\r\n\r\nevent:x\r\n\r\n", "data\n\n"] {
            let text = format!("{between}\n\n:\n\nevent: stop\ndata: {{\"key\":\"k\"}}\n\n");
            let whole = all(text.as_bytes(), usize::MAX);
            assert_eq!(whole.last().unwrap(), &("stop".to_owned(), b"{\"key\":\"k\"}".to_vec()), "{text:?}");
            assert_eq!(all(text.as_bytes(), 1), whole, "{text:?}");
        }
    }

    #[test]
    fn a_line_has_a_limit() {
        let mut events = Events::default();
        events.add(&vec![b'x'; MAX_LINE + 1]);
        assert!(events.next().unwrap_err().to_string().contains("too long"));
    }
}
