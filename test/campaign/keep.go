package campaign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/load"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

// defaultKeep is for how long each sidecar keeps keys: as users do, for long, and not at all.
const defaultKeep = "200ms,1s,0"

// In every ten seconds so many keys are taken without the store, at least; while the clients contend, so many are given up to others.
const leastKept, leastRecalled = 10, 3

// keepOf reads for how long each sidecar keeps keys.
func keepOf(text string) (keep []time.Duration, err error) {
	for part := range strings.SplitSeq(text, ",") {
		d, bad := time.ParseDuration(part)
		keep, err = append(keep, d), errors.Join(err, bad)
	}
	if err == nil && len(keep) != sidecars {
		err = fmt.Errorf("%d durations, for %d sidecars", len(keep), sidecars)
	}
	if err != nil {
		err = fmt.Errorf("-keep %q: %w", text, err)
	}
	return keep, err
}

func keepText(keep []time.Duration) string {
	parts := make([]string, len(keep))
	for i, d := range keep {
		if parts[i] = d.String(); d == 0 {
			parts[i] = "0"
		}
	}
	return strings.Join(parts, ",")
}

// keepers are the sidecars that keep keys.
func keepers(keep []time.Duration) (all []int) {
	for i, d := range keep {
		if d > 0 {
			all = append(all, i)
		}
	}
	return all
}

// kindsOf are the kinds of faults that strike sidecars on a store.
func kindsOf(store world.Engine, keep []time.Duration) []fault.Kind {
	if len(keepers(keep)) == 0 {
		return fault.Kinds(store)
	}
	return slices.Concat(fault.Kinds(store), fault.KeeperKinds)
}

// onceOf are those of CI's round. On PostgreSQL a sidecar is struck while it keeps a key, if the same fault can also strike it at any time.
func onceOf(store world.Engine, keep []time.Duration) []fault.Kind {
	once := fault.Once(store)
	if len(keepers(keep)) == 0 || store != world.PostgreSQL {
		return once
	}
	alike := []string{"kill-sidecar", "freeze-sidecar", "cut", "unheard"}
	return append(slices.DeleteFunc(once, func(k fault.Kind) bool { return slices.Contains(alike, k.Name) }), fault.KeeperKinds...)
}

func (c *campaign) pods() (pods []string) {
	for _, s := range c.world.Sidecars {
		pods = append(pods, s.Name())
	}
	return pods
}

// drained judges each sidecar that keeps a key when it is told to stop: it gives the key up, and leaves nothing.
func (c *campaign) drained() error {
	ctx, cancel := context.WithTimeout(context.Background(), goneWithin)
	defer cancel()
	var errs []error
	for _, i := range keepers(c.keeps) {
		errs = append(errs, c.drainedOne(ctx, i))
	}
	return errors.Join(errs...)
}

func (c *campaign) drainedOne(ctx context.Context, i int) error {
	s, key := c.world.Sidecars[i], fmt.Sprintf("drained:%d", i)
	// The history has been judged, or is judged without this.
	keeper := &load.Keeper{Recorder: history.NewRecorder("drain", nil), Sidecar: i, Socket: s.Socket(), Key: key}
	defer keeper.Close()
	if !keeper.Keep(ctx) {
		return fmt.Errorf("%s keeps no key", s.Name())
	}
	if err := s.Drain(); err != nil {
		return err
	}
	view := c.world.Store.View()
	defer view.Close()
	left, err := view.Left(ctx, slices.DeleteFunc(c.pods(), func(pod string) bool { return pod == s.Name() }))
	errs := []error{err}
	for _, what := range left {
		errs = append(errs, fmt.Errorf("%s was told to stop while it kept %s, and %s is left", s.Name(), key, what))
	}
	return errors.Join(append(errs, s.Start(), s.Ready())...)
}
