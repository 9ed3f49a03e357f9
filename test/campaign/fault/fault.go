// Package fault strikes a world: each kind of fault is injected, lasts for a while, is
// healed, and proves that it bit. A seed alone decides the plan: which fault strikes whom,
// and when.
package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

// Scene is what faults strike, and where they are recorded.
type Scene struct {
	World    *world.World
	Recorder *history.Recorder
	// TTL is the sidecars'; no lease lasts longer than LongestTTL.
	TTL, LongestTTL time.Duration
}

// patience is how much longer than planned a fault lasts that has not bitten yet.
const patience = 15 * time.Second

// part is what a fault strikes. Two faults never strike the same at a time.
type part string

const (
	server  part = "server"  // of the store, or several
	sidecar part = "sidecar" // or its network
	app     part = "app"
)

// Kind is a kind of fault.
type Kind struct {
	Name string
	part part
	// weight is how often it comes, compared with others.
	weight int
	// least and most say how long it lasts.
	least, most time.Duration
	// forgets: the database server may crash.
	forgets bool
	// keeper: it strikes a sidecar that keeps keys.
	keeper bool
	// strike injects the fault, lets it last, heals it, and returns how often it bit: how
	// many connections broke, statements failed, processes ended.
	strike func(s *strike) (bites int, err error)
}

// Kinds are all kinds that strike a world with this store.
func Kinds(store world.Engine) []Kind {
	switch store {
	case world.Etcd:
		return slices.Concat(networkKinds, sidecarKinds, etcdKinds)
	case world.MariaDB:
		return slices.Concat(networkKinds, sidecarKinds, mysqlKinds, clockKinds)
	case world.Redis:
		return slices.Concat(networkKinds, sidecarKinds, redisKinds, clockKinds)
	case world.Cluster:
		return slices.Concat(networkKinds, sidecarKinds, clusterKinds, clockKinds)
	}
	return slices.Concat(networkKinds, statementKinds, sidecarKinds, databaseKinds, clockKinds)
}

// Once are those kinds that CI's round on a store strikes with. What strikes apps, and what sidecars do to themselves, is struck
// on PostgreSQL only, because the store takes no part in it.
func Once(store world.Engine) []Kind {
	return slices.DeleteFunc(Kinds(store), func(k Kind) bool {
		alone := []string{"latency", "narrow", "flap", "drain-sidecar", "suspend"}
		return store != world.PostgreSQL && (k.part == app || slices.Contains(alone, k.Name))
	})
}

// Find finds kinds of a store by name.
func Find(store world.Engine, names []string) (kinds []Kind, err error) {
	if kinds, err = Among(Kinds(store), names); err != nil {
		return nil, fmt.Errorf("%w on %s", err, store)
	}
	return kinds, nil
}

// Among finds kinds by name.
func Among(all []Kind, names []string) (kinds []Kind, err error) {
	for _, name := range names {
		i := slices.IndexFunc(all, func(k Kind) bool { return k.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no fault %q", name)
		}
		kinds = append(kinds, all[i])
	}
	return kinds, nil
}

// strike is a fault that happens.
type strike struct {
	ctx context.Context
	Scene
	Event
	rng *rand.Rand
}

// last lets the fault last for as long as it shall, and on until it has bitten: it may
// strike where another fault keeps all quiet. It returns how often it bit.
func (s *strike) last(bitten func() int) (bites int) {
	end := time.Now().Add(s.Length)
	for {
		bites = bitten()
		now := time.Now()
		if s.ctx.Err() != nil || !now.Before(end) && bites > 0 || now.After(end.Add(patience)) {
			return bites
		}
		s.rest(min(100*time.Millisecond, max(end.Sub(now), 10*time.Millisecond)))
	}
}

// during counts how often probe says so while the fault lasts.
func (s *strike) during(probe func() bool) int {
	bites := 0
	return s.last(func() int {
		if probe() {
			bites++
		}
		return bites
	})
}

// away counts how often the store did not answer while the fault lasted.
func (s *strike) away() int {
	return s.during(func() bool { return s.World.Store.Answers(500*time.Millisecond) != nil })
}

// once is for a fault that has bitten when it is injected, and lasts.
func (s *strike) once() { s.last(func() int { return 1 }) }

func (s *strike) rest(d time.Duration) {
	select {
	case <-s.ctx.Done():
	case <-time.After(d):
	}
}

// sidecar is the target, if the fault strikes a sidecar or its network.
func (s *strike) sidecar() *world.Sidecar { return s.World.Sidecars[s.Target] }

func (s *strike) app() *world.App { return s.World.Apps[s.Target] }

// healed joins what a fault and its healing say.
func healed(bites int, errs ...error) (int, error) { return bites, errors.Join(errs...) }
