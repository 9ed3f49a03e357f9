package etcd_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// engine opens stores on one prefix.
type engine struct{ *server }

func (e engine) Open(id store.Identity) store.Store {
	return cas.New(cas.Config{Backend: e.server.Open(id.Instance), Identity: id, SweepTerm: -1})
}

// Proves: A7
func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) storetest.Backend { return engine{on(t, cluster)} })
}
