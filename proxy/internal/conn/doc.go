// Package conn is the sockets of the proxy. It makes the Unix socket, accepts connections
// and limits their number, keeps the times of requests and answers, notices that a peer has
// closed, and writes event streams. It knows no route of the API, no session and no lock: an
// [Owner] has what lives as long as a connection.
package conn
