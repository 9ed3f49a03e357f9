// Package proxy is the sidecar's HTTP server: HTTP/1.1 on a Unix socket, and if configured on loopback TCP
// and an admin address. Package lease decides about locks.
//
// # Connections and sessions
//
// A connection's first acquire with bind:session opens its session, which ends with the connection. A
// connection that posts to /v1/sessions becomes an event stream with an explicit session. Calls on other
// connections join this session with the Lock-Session header. It ends with the stream's connection.
//
// The server notices in every state when a connection closes (exit, kill -9, close, half-close):
//
//   - Idle: fasthttp blocks in Read, which returns the end. There is no idle timeout.
//   - Within a request: the same. A request that is not complete after the request timeout is answered with
//     408, and the connection ends.
//   - During a call: fasthttp does not read. After 25 to 50 ms (Timeouts.Guard), the call gets a guard: a goroutine
//     that sleeps in the runtime's poller. It wakes at a close and needs no processor time before.
//   - While an event stream is open: such a goroutine, from the start.
//   - While an answer waits for its reader: the same as under a call, and a time limit.
//
// A peek at the socket does not show a close behind bytes that the client sent ahead. The poll(2) of Linux
// does. On other systems, and by its source in the sandbox gVisor, the server notices such a close only
// when the call or the stream is over.
//
// When a connection closes, its call is canceled. Then its sessions end, and package lease releases their locks. If the
// call had joined an explicit session, that session lives on.
//
// # Undelivered answers
//
// A grant for an explicit session, or with bind:ttl, outlives its connection. The server hands it back if
// it knows that the caller left before the answer was written: the guard noticed the close, or the write
// failed. Over TCP such a write succeeds, so the server looks for the close before. The server cannot know
// whether the client read a written answer. A client without an answer asks again with the same request_id,
// or releases by it.
//
// An answer with such a grant is written at once. fasthttp writes other answers to pipelined requests when
// the pipeline is empty or its buffer full. If a client needs one of these answers and its next call may
// block, it sends that call on another connection.
//
// # Requests
//
// Package wire parses paths, queries and bodies strictly. The server refuses a request if another server could see
// its end elsewhere: with Content-Length and Transfer-Encoding, an encoding other than chunked, a header Trailer, or
// header lines that end in LF alone or continue in the next line. It skips empty lines before a request. A request line may end
// in LF alone (RFC 9112, 2.2), and a trailer that no header announces is read and dropped: neither moves the end of a request.
//
// # Event streams
//
// A stream has a limited queue and one goroutine that writes it. A push never waits. The head of a
// session's stream is sent at once. The head of a key's stream waits up to 100 ms for the subscription, so
// that an early failure (a limit, a drain, the store) is a status. After a later failure, the stream's only
// event is problem. Events that arrive before the state are sent after it. Streams of keys continue during
// a drain, and end when the sidecar stops.
//
// # Traces, metrics, logs
//
// With a Tracer, each call of a lock is a span, a child of the app's, until its answer is built. A request
// without a key, a refused request and an event stream have no span.
//
// Config.MetricsHandler answers GET /metrics. GET /v1/stats counts the whole database. Only one count runs
// at a time, and its result is repeated for a second: see stats.go.
//
// A refused call or connection has one log line, an app's mistake one at debug. Package lease logs its own
// refusals. Lines about a call name its trace. Log lines never contain a body, a query, or a session's id.
//
// The limits are: heads 16 KiB, bodies Config.MaxBody, data 4 KiB and 64 levels, a tracestate 512 bytes,
// Config.MaxConns connections, 32 long answers at a time, about 1 MiB for a page of a list. Event streams
// have a limited queue, and all readers a time limit. A connection on the admin address serves one request;
// if all 64 are open, a new one replaces the oldest idle one. Package lease limits calls.
//
// # Socket
//
// The sidecar locks SOCKET.lock with flock(2) for its whole life, so two sidecars never share a path. The file
// stays, because a removed lock file could be locked twice. With the lock held, the sidecar removes a stale socket,
// and refuses any other file at the path. It makes the last folder of the path (mode 0755) if missing.
package proxy
