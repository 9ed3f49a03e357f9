package etcd_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/etcd"
)

// TestViews: the instances of a process, which share a connection, keep all rules among themselves.
func TestViews(t *testing.T) {
	t.Parallel()
	castest.RunViews(t, func(t *testing.T) cas.Server {
		s := on(t, cluster)
		server, err := etcd.NewServer(etcd.Config{URL: s.url.String()})
		if err != nil {
			t.Fatal(err)
		}
		return server
	})
}
