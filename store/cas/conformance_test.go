package cas_test

import (
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
	"github.com/locksidecar/locksidecar/store/storetest"
)

// modelChecks is the number of runs of TestModel without -rapid.checks.
const modelChecks = "300"

func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", modelChecks); err != nil {
		panic(err)
	}
	storetest.Understates(time.Second) // an instance counts its own leases from before their opening, so a machine that pauses then makes them short
	goleak.VerifyTestMain(m)
}

// backend opens instances on one server.
type backend struct {
	server *fake.Server
	faults fake.Faults
}

func (b backend) Open(id store.Identity) store.Store {
	return cas.New(cas.Config{Backend: b.server.Open(id.Instance, b.faults), Identity: id, SweepTerm: -1})
}

// Age implements [storetest.Aging].
func (backend) Age(d time.Duration) { time.Sleep(d) } // virtual

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Backend { return backend{server: fake.NewServer()} })
}

func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The struct hides *testing.T from rapid, which would ask for its deadline. Virtual time has no deadline.
		storetest.RunModel(struct{ rapid.TB }{t}, 100*time.Millisecond, func() storetest.Aging { return backend{server: fake.NewServer()} })
	})
}
