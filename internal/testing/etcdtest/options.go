package etcdtest

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
)

// Option changes how a cluster is set up.
type Option func(*settings)

type settings struct {
	nodes  int
	binary string
	flags  []string
	tls    *tlsFiles
	split  bool
}

type tlsFiles struct {
	authority   *certtest.Authority
	clientCerts bool
}

// Nodes sets the number of servers; 1 without it.
func Nodes(n int) Option { return func(s *settings) { s.nodes = n } }

// WithBinary runs another server than that of `test/deps.sh etcd`.
func WithBinary(path string) Option { return func(s *settings) { s.binary = path } }

// WithFlag gives each server a flag.
func WithFlag(name, value string) Option {
	return func(s *settings) { s.flags = append(s.flags, "--"+name+"="+value) }
}

// WithQuota limits the bytes of a server's database.
func WithQuota(bytes int) Option { return WithFlag("quota-backend-bytes", fmt.Sprint(bytes)) }

// WithElection sets the times of elections. A server refuses an election timeout of less than five heartbeats.
func WithElection(heartbeat, timeout time.Duration) Option {
	return func(s *settings) {
		WithFlag("heartbeat-interval", fmt.Sprint(heartbeat.Milliseconds()))(s)
		WithFlag("election-timeout", fmt.Sprint(timeout.Milliseconds()))(s)
	}
}

// WithTLS lets clients connect by TLS only, to a certificate of this CA for localhost. With clientCerts,
// they need one of the same CA.
func WithTLS(authority *certtest.Authority, clientCerts bool) Option {
	return func(s *settings) { s.tls = &tlsFiles{authority, clientCerts} }
}

// Separable lets a test cut nodes off from each other: see [Node.Isolate].
func Separable() Option { return func(s *settings) { s.split = true } }
