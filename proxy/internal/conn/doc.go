// Package conn is the sockets of the proxy: it makes the Unix socket, limits connections, keeps the
// times of requests and answers, notices closed peers, and writes event streams. It knows no route,
// session or lock: an [Owner] has what lives as long as a connection.
package conn
