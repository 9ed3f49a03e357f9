// Package conn contains the sockets of the proxy: it makes the Unix socket, limits connections, enforces
// the time limits of requests and answers, notices closed peers, and writes event streams. It does not know
// routes, sessions or locks. An [Owner] contains everything that ends with a connection.
package conn
