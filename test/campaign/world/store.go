package world

import (
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"

	"github.com/locksidecar/locksidecar/test/campaign/stored"
)

// Engine is what keeps the locks.
type Engine string

// The engines.
const (
	PostgreSQL Engine = "postgres"
	Etcd       Engine = "etcd"
	MariaDB    Engine = "mysql"
	Redis      Engine = "redis"
	Cluster    Engine = "redis-cluster"
)

// Engines are all of them.
var Engines = []Engine{PostgreSQL, Etcd, MariaDB, Redis, Cluster}

// Store is the server that keeps the locks, or the servers.
type Store interface {
	// Answers reports whether a sidecar without proxies would get an answer now.
	Answers(limit time.Duration) error
	// View looks into the store by a way that takes no part in the faults.
	View() stored.View

	// network makes the way of one sidecar.
	network(tb testing.TB, server *toxiproxy.ApiServer, name string) (*Network, error)
	// failed says what went wrong that no fault explains.
	failed() error
}
