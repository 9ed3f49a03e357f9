// Package conn contains the sockets of the proxy: it makes the Unix socket, limits connections, enforces
// the time limits of requests and answers, notices closed peers, and writes event streams. It does not know
// routes, sessions or locks. An [Owner] contains everything that ends with a connection.
//
// # How a connection ends
//
//   - Conn.Close: the serving goroutine closes it. fasthttp does so when Read fails, or the end of a stream.
//   - guard.noticeClose: during a call, its guard sees that the peer has closed. It cancels the call, whose end leads to Close.
//   - Stream.Serve: during a stream, a goroutine of the stream sees that the peer has closed.
//   - Conn.cut: another goroutine closes the socket, to make room, or because a reader is too slow. Read, the guard or the stream sees that.
//   - Conn.stop: the sidecar stops. An idle connection is cut, a stream finishes, any other closes after its answer.
//
// The first three tell the owner (notifyClose), so the owner may hear of a close twice.
package conn
