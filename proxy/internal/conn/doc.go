// Package conn is the sockets of the proxy: it makes the Unix socket, knows the process at
// the other end, and notices that a peer has closed. It knows neither HTTP nor locks.
package conn
