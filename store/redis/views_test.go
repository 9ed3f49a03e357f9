package redis_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/redis"
)

// TestViews: the instances of a process, which share the connections and the subscription, keep all rules among themselves.
func TestViews(t *testing.T) {
	t.Parallel()
	castest.RunViews(t, func(t *testing.T) cas.Server {
		server, err := redis.NewServer(redis.Config{ServerConfig: cas.ServerConfig{URL: one(t).url}})
		if err != nil {
			t.Fatal(err)
		}
		return server
	})
}
