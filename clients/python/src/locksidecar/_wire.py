"""HTTP/1.1 and server-sent events, as bytes in and bytes out. No I/O.

Only what the sidecar speaks: one request after the other, and answers with a length or in chunks.
"""

from __future__ import annotations

import json
from typing import Any

from . import errors

_MAX_HEAD = 64 * 1024
# Made once: json.loads and json.dumps would detect the encoding and make an encoder for each call.
_decode = json.JSONDecoder().decode
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def dump(value: Any) -> bytes:
    """Writes JSON."""
    return _encode(value).encode()


def as_json(value: Any) -> Any:
    """Returns the value as its receivers read it."""
    return _decode(_encode(value))


class Answer:
    """One complete answer."""

    __slots__ = ("body", "head", "status")

    def __init__(self, status: int, head: bytes, body: bytes) -> None:
        self.status = status
        self.head = head
        self.body = body

    def header(self, name: bytes) -> str:
        """The value of a header; empty if there is none. `name` is in lower case."""
        return _header(self.head, name)

    @property
    def last(self) -> bool:
        """Whether the connection closes after it."""
        return self.header(b"connection").lower() == "close"

    def json(self) -> Any:
        """Reads the body."""
        try:
            return _decode(self.body.decode())
        except ValueError as e:
            raise errors.ProtocolError(
                f"the answer (status {self.status}) is not JSON, but {self.body[:80]!r}: is this the socket of a"
                " locksidecar?"
            ) from e

    def result(self) -> Any:
        """Reads the body of a success; raises the error of anything else."""
        if 200 <= self.status < 300:
            return self.json()
        raise errors.from_problem(self.json(), self.status, self.header(b"retry-after"))


def _header(head: bytes, name: bytes) -> str:
    # Only a few headers matter, so they are not all parsed.
    start = head.lower().find(b"\r\n" + name + b":")
    if start < 0:
        return ""
    start += len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].decode("latin-1").strip()


def request(method: str, target: str, headers: str, body: bytes) -> bytes:
    """Builds a request. `headers` are more lines, each with its line end."""
    length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
    return f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}{length}\r\n".encode("ascii") + body


class AnswerParser:
    """Parses one answer as its bytes arrive."""

    __slots__ = ("_buffer", "_chunks", "_head", "_length", "status")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._length = -1  # of the body; -1 until the head is complete
        self._chunks: ChunkDecoder | None = None
        self._head = b""
        self.status = 0

    @property
    def streaming(self) -> bool:
        """Whether the head is complete and a body in chunks follows: see `rest`."""
        return self._chunks is not None

    def feed(self, data: bytes) -> Answer | None:
        """Takes more bytes. Returns the answer when it is complete."""
        self._buffer += data
        if self._length < 0 and not self._read_head():
            return None
        if self._chunks is not None:
            return None
        if len(self._buffer) < self._length:
            return None
        return Answer(self.status, self._head, bytes(self._buffer[: self._length]))

    def rest(self) -> bytes:
        """The part of a body in chunks that arrived since the last call, decoded."""
        assert self._chunks is not None
        data = self._chunks.feed(bytes(self._buffer))
        self._buffer.clear()
        return data

    def _read_head(self) -> bool:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD or not b"HTTP/1.1 ".startswith(self._buffer[:9]):
                    raise _not_http(self._buffer)
                return False
            head = bytes(self._buffer[:end])
            if not head.startswith(b"HTTP/1.1 ") or not head[9:12].isdigit():
                raise _not_http(self._buffer)
            self._head, self.status = head, int(head[9:12])
            if not 100 <= self.status < 200 or self.status == 101:
                break
            del self._buffer[: end + 4]  # such as 103 Early Hints of a proxy: the answer follows
        length = _header(head, b"content-length")
        if length.isdigit():
            self._length = int(length)
        elif _header(head, b"transfer-encoding").lower() == "chunked":
            self._chunks, self._length = ChunkDecoder(), 0
        else:
            raise _not_http(self._buffer)
        del self._buffer[: end + 4]
        return True


def _not_http(data: bytes | bytearray) -> errors.ProtocolError:
    return errors.ProtocolError(
        f"the answer is not HTTP/1.1, but {bytes(data[:40])!r}: is this the socket of a locksidecar?"
    )


class ChunkDecoder:
    """Removes the framing from a body in chunks."""

    __slots__ = ("_buffer", "_left", "ended")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0  # bytes left of this chunk and its line end
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """Takes more bytes. Returns their content."""
        self._buffer += data
        out = bytearray()
        while not self.ended:
            if self._left == 0:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    break
                size = int(self._buffer[:end].split(b";")[0], 16)
                del self._buffer[: end + 2]
                if size == 0:
                    self.ended = True
                    break
                self._left = size + 2
            piece = self._buffer[: self._left]
            if not piece:
                break
            del self._buffer[: len(piece)]
            content = max(0, min(len(piece), self._left - 2))
            out += piece[:content]
            self._left -= len(piece)
        return bytes(out)


class EventParser:
    """Parses an event stream into names and their JSON."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        """Takes more bytes. Returns the events that they complete, without comments."""
        self._buffer += data
        found: list[tuple[str, Any]] = []
        while (end := self._buffer.find(b"\n\n")) >= 0:
            block = self._buffer[:end].decode()
            del self._buffer[: end + 2]
            name, lines = "message", []
            for line in block.split("\n"):
                field, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if field == "event":
                    name = value
                elif field == "data":
                    lines.append(value)
            if lines:
                found.append((name, json.loads("\n".join(lines))))
        return found


class StreamParser:
    """Parses an answer that is an event stream."""

    __slots__ = ("_events", "_head")

    def __init__(self) -> None:
        self._head = AnswerParser()
        self._events = EventParser()

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        """Takes more bytes. Returns the events that they complete. Raises the error if the answer is a problem."""
        answer = self._head.feed(data)
        if answer is not None:
            answer.result()
            raise errors.ProtocolError("the answer is not an event stream: is this the socket of a locksidecar?")
        if not self._head.streaming:
            return []
        try:
            return self._events.feed(self._head.rest())
        except ValueError as e:
            raise errors.ProtocolError(f"the event stream is broken ({e}): is this the socket of a locksidecar?") from e
