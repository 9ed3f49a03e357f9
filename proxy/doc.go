// Package proxy is the sidecar's front: HTTP/1.1 on a Unix socket (and, if
// configured, on loopback TCP and an admin address), on top of package lease,
// which decides about locks.
//
// # Connections and sessions
//
// Every connection can own locks. Its session is opened by its first acquire
// with bind:session and lives exactly as long as the connection. A connection
// that posts to /v1/sessions turns into an event stream with a session of its
// own, which calls on other connections join with the Lock-Session header. A
// connection may have both; both end with it.
//
// So a connection that closes matters more here than in most servers, and it is
// noticed in each state, whatever closed it (exit, kill -9, close, half-close):
//
//   - Idle: fasthttp blocks in Read and sees the end. There is no idle timeout.
//   - In the middle of a request: the same. A request that is not complete after
//     the request timeout is answered with 408, and the connection ends.
//   - While a call is pending: nobody reads, and fasthttp does not look. The
//     connection's watch acts when the peer has closed and a call waits, a millisecond
//     after both. On Linux it hears of the close from an epoll of the server's own, which
//     asks for closes alone: bytes that were sent ahead do not hide one, and a call
//     that waits costs no timer, goroutine or look at the socket. Elsewhere the sockets
//     on which a call waits are looked at each 10 ms, and so they are where the kernel
//     has not told of a close that the server tried at its start, as in some sandboxes:
//     one line in the log says so. See watch.go, disconnects.go, polls.go.
//   - While an event stream is open, of a session or a key: a goroutine peeks at the
//     socket and sleeps in the runtime's poller, from the start.
//   - While an answer waits for its reader: the watch, and a time limit.
//   - Bytes that a client sent ahead stand before the end of a stream and would hide
//     it. The poll(2) of Linux tells all the same. Where it does not (on other systems, and
//     by its source in the sandbox gVisor), also under a call, the close is then seen when
//     the call or the stream is over.
//
// When a connection closes, its sessions end and package lease releases their
// locks. The pending call is over; when it had joined an explicit session, that
// session lives on.
//
// # Undelivered answers
//
// A grant for an explicit session, or with bind:ttl, outlives its connection. The server
// hands it back if the caller is known to have left before the answer was written: the
// watch saw the close, or the answer could not be written to its end. Nobody can know
// whether the client read an answer that was written. The client asks again with the
// same request_id, or releases by it.
//
// An answer with such a grant is written at once. fasthttp writes other answers to
// pipelined requests when the pipeline is empty or its buffer is full: a client that needs
// one of these before the next call blocks sends that call on another connection.
//
// # What is read strictly, and what is not
//
// Package wire parses paths, queries and bodies strictly. A request is also refused if
// another server might find its end elsewhere: with Content-Length and
// Transfer-Encoding, with an encoding other than chunked, with a Trailer, or with
// headers whose lines end in LF alone or go on in the next. Empty lines before a request
// are skipped, and an idle connection stays idle.
//
// # Event streams
//
// A stream has a bounded queue, into which sessions and watches push without ever
// waiting, and one goroutine that writes it; see stream.go. The head of a session's
// stream is sent at once. That of a key's waits for the watch, for 100 ms at most: so
// a limit, a drain, or a store that fails at once, is a status; what fails later is
// the stream's only event, problem. What is heard before the watch stands is told
// after the state. Streams of keys go on while the sidecar drains, and end when it
// stops.
//
// # What is told
//
// With a Tracer, each call of a lock is a span, a child of what the app sent: see
// trace.go. It begins when the call is known and ends when the answer is built, so a
// request that has no key, or that nobody may send, has none, and neither has an event
// stream. The span hangs in the context of the call; only its Done arms the watch, so
// who looks for the span costs nothing. Without a Tracer a call looks at one nil
// pointer, and hands on the traceparent as the app sent it.
//
// GET /metrics shows what Config.MetricsHandler makes, GET /v1/stats what the whole database
// holds. The latter is counted once at a time, and told for a second: see stats.go.
//
// A call or connection that this package refuses has one line in the log; what an app
// gets wrong has one at debug; what package lease refuses it logs itself. Lines about a
// call name its trace. None has a body, a query, or the id of a session in it.
//
// # Limits
//
// Heads up to 16 KiB, bodies up to Config.MaxBody, data up to 4 KiB and 64 levels, a
// tracestate up to 512 bytes, connections up to Config.MaxConns, a page of a list up to about 1 MiB and 32 long answers at a
// time, and a bounded queue and time for those who read an event stream, or time
// for those who read an answer, slowly. A connection on the admin address serves
// one request; when there are 64, the oldest idle one makes room for the next.
// Calls are limited by package lease.
//
// # Socket
//
// A file SOCKET.lock, held with flock(2) for the life of the sidecar, sees to it
// that two sidecars never share a path; it is left in place, because a lock file
// that is removed can be locked twice. With it held, a stale socket is removed,
// and anything else at the path is refused. The folder is made (mode 0755) if only
// its last part is missing.
package proxy
