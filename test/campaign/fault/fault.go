// Package fault strikes a world: each kind of fault is injected, lasts for a while, is
// healed, and proves that it bit. What strikes when and whom is a plan that follows from
// a seed alone.
package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// part is what a fault strikes. Two faults never strike the same at a time.
type part string

const (
	database part = "postgres"
	sidecar  part = "sidecar" // or its network
	app      part = "app"
)

// Kind is a kind of fault.
type Kind struct {
	Name string
	part part
	// weight is how often it comes, compared with others.
	weight int
	// least and most say how long it lasts.
	least, most time.Duration
	// strike injects the fault, lets it last, heals it, and returns how often it bit: how
	// many connections broke, statements failed, processes ended.
	strike func(s *strike) (bites int, err error)
}

// Kinds are all kinds.
var Kinds = append(append(append(networkKinds, sidecarKinds...), databaseKinds...), clockKinds...)

// Find finds kinds by name.
func Find(names []string) (kinds []Kind, err error) {
next:
	for _, name := range names {
		for _, k := range Kinds {
			if k.Name == name {
				kinds = append(kinds, k)
				continue next
			}
		}
		return nil, fmt.Errorf("there is no fault %q", name)
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

// last waits until the fault has lasted long enough.
func (s *strike) last() { s.rest(s.Length) }

func (s *strike) rest(d time.Duration) {
	select {
	case <-s.ctx.Done():
	case <-time.After(d):
	}
}

// sidecar is whom the fault strikes, if it strikes a sidecar or its network.
func (s *strike) sidecar() *world.Sidecar { return s.World.Sidecars[s.Target] }

func (s *strike) app() *world.App { return s.World.Apps[s.Target] }

// during counts how often probe says so, again and again while the fault lasts, and
// once at least.
func (s *strike) during(probe func() bool) (bites int) {
	end := time.Now().Add(s.Length)
	for {
		if probe() {
			bites++
		}
		if s.ctx.Err() != nil || !time.Now().Before(end) {
			return bites
		}
		s.rest(min(100*time.Millisecond, time.Until(end)))
	}
}

// healed joins what a fault and its healing say.
func healed(bites int, errs ...error) (int, error) { return bites, errors.Join(errs...) }
