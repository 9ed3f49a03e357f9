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

// in opens the instances of each test in so many processes on a server of its own.
func in(processes int) func(*testing.T) storetest.Backend {
	return func(t *testing.T) storetest.Backend { return onFake(processes, fake.NewServer(), fake.Faults{})(t) }
}

func onFake(processes int, server *fake.Server, faults fake.Faults) func(*testing.T) storetest.Backend {
	var spaces []store.Space
	for range processes {
		spaces = append(spaces, cas.NewSpace(server.Process(faults), cas.Config{SweepTerm: -1}))
	}
	return storetest.In(spaces...)
}

// aging waits in virtual time.
type aging struct{ storetest.Backend }

// Age implements [storetest.Aging].
func (aging) Age(d time.Duration) { time.Sleep(d) }

func TestConformance(t *testing.T) { storetest.Run(t, in(3)) }

// TestViews: the instances of a process, which share the memory of records, keep all rules among themselves.
func TestViews(t *testing.T) { storetest.RunTogether(t, in(1)) }

func TestModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The struct hides *testing.T from rapid, which would ask for its deadline. Virtual time has no deadline.
		storetest.RunModel(struct{ rapid.TB }{t}, 100*time.Millisecond, func() storetest.Aging { return aging{in(2)(t)} })
	})
}
