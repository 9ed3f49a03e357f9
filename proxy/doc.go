// Package proxy is the sidecar's front: HTTP/1.1 on a Unix socket, and if configured on
// loopback TCP and an admin address. Package lease decides about locks.
//
// # Connections and sessions
//
// A connection's first acquire with bind:session opens its session, which lives exactly as
// long. A connection that posts to /v1/sessions becomes an event stream with another session;
// calls on other connections join it with the Lock-Session header. Both end with the connection.
//
// The server notices in each state that a connection closes (exit, kill -9, close, half-close):
//
//   - Idle: fasthttp blocks in Read and sees the end. There is no idle timeout.
//   - Within a request: the same. A request that is not complete after the request timeout
//     is answered with 408, and the connection ends.
//   - During a call: fasthttp does not read. The server peeks at the socket each
//     Timeouts.Poll, 25 ms. After a second the call gets a guard instead: a goroutine that
//     peeks and sleeps in the runtime's poller. It sees a close at once and costs nothing.
//   - While an event stream is open: such a goroutine, from the start.
//   - While an answer waits for its reader: the same as under a call, and a time limit.
//
// A peek does not see the end of a stream behind bytes that the client sent ahead. The
// poll(2) of Linux does. On other systems, and by its source in the sandbox gVisor, such a
// close is seen when the call or the stream is over.
//
// When a connection closes, its sessions end and package lease releases their locks. A
// pending call ends. If it had joined an explicit session, that session lives on.
//
// # Undelivered answers
//
// A grant for an explicit session, or with bind:ttl, outlives its connection. The server hands it back
// if it knows that the caller left before the answer was written: the poll saw the close, or the write
// failed. Nobody can know whether the client read a written answer. The client asks again with the same
// request_id, or releases by it.
//
// An answer with such a grant is written at once. fasthttp writes other answers to pipelined requests
// when the pipeline is empty or its buffer full. If the next call blocks, a client that needs one of
// these first sends that call on another connection.
//
// # Requests
//
// Package wire parses paths, queries and bodies strictly. A request whose end another server might find
// elsewhere is refused: with Content-Length and Transfer-Encoding, an encoding other than chunked, a
// Trailer, or header lines that end in LF alone or go on in the next. Empty lines before a request are
// skipped.
//
// # Event streams
//
// A stream has a bounded queue and one goroutine that writes it. A push never waits. The head of a
// session's stream is sent at once. The head of a key's stream waits up to 100 ms for the subscription,
// so an early failure (a limit, a drain, the store) is a status. A later one is the stream's only
// event, problem. Events that arrive before the state are sent after it. Streams of keys go on during a
// drain, and end when the sidecar stops.
//
// # Traces, metrics, logs
//
// With a Tracer, each call of a lock is a span, a child of the app's, until its answer is
// built. A request without a key, a refused request and an event stream have none.
//
// Config.MetricsHandler answers GET /metrics. GET /v1/stats counts the whole database,
// once at a time, and repeats the count for a second: see stats.go.
//
// A refused call or connection is one log line, an app's mistake one at debug. Package lease logs its
// own refusals. Lines about a call name its trace. None has a body, a query, or a session's id.
//
// # Limits
//
// The limits are: heads 16 KiB, bodies Config.MaxBody, data 4 KiB and 64 levels, a tracestate 512
// bytes, Config.MaxConns connections, 32 long answers at a time, about 1 MiB for a page of a list.
// Readers of event streams have a bounded queue, and all readers a time limit. A connection on the
// admin address serves one request; of 64, the oldest idle one makes room for the next. Package lease
// limits calls.
//
// # Socket
//
// The sidecar holds SOCKET.lock with flock(2) for its life, so two sidecars never share a path. The
// file stays: a removed lock file can be locked twice. With the lock held, a stale socket is removed,
// and anything else at the path is refused. The folder's last part is made (mode 0755) if missing.
package proxy
