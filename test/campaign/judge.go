package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/check"
	"github.com/locksidecar/locksidecar/test/campaign/fault"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/load"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

// least is what must have happened in every ten seconds: of a run in which less did,
// nothing is believed.
var least = check.Counts{Grants: 40, Waited: 10, Drops: 10, HandedOn: 10, Shares: 20, Full: 1, Downgrades: 1, Mismatches: 1, Counted: 1}

// rules are those of this campaign, whose faults strike for that long.
func (c *campaign) rules(length time.Duration) check.Rules {
	r := rules(c.store, length)
	if len(keepers(c.keeps)) > 0 {
		r.Least.Kept, r.Least.Recalled = int(length/(10*time.Second))*leastKept, leastRecalled
	}
	return r
}

// rules are those of a campaign of that length on a store.
func rules(store world.Engine, length time.Duration) check.Rules {
	r := check.DefaultRules()
	tens := int(length / (10 * time.Second))
	r.Least = check.Counts{
		Grants: tens * least.Grants, Waited: tens * least.Waited, Drops: tens * least.Drops, HandedOn: tens * least.HandedOn,
		Shares: tens * least.Shares, Full: tens * least.Full, Downgrades: tens * least.Downgrades,
		Mismatches: tens * least.Mismatches, Counted: tens * least.Counted,
	}
	// Rules for calm times are judged while the clients contend, however long the rest was.
	r.Least.Ordered, r.Least.Turns, r.Least.HandOffs, r.Least.Rooms = 50, 50, 20, 10
	r.Least.Searched = 5                               // pieces
	if store == world.Etcd || store == world.MariaDB { // a turn takes longer there, most of all on a busy machine
		r.Least.Full, r.Least.Rooms = max(1, tens/3), 3
	}
	if store == world.Cluster { // a primary that is away stops all, because each lease is on all primaries
		r.Least.Full = max(1, tens/3)
	}
	if store == world.Redis || store == world.Cluster { // each failover takes more than ten seconds with its quiet time, and few moments are calm
		r.Least.Rooms = 1
	}
	return r
}

// struck judges the faults: each has bitten and was healed.
func struck(plan fault.Plan, outcomes []fault.Outcome) error {
	var errs []error
	for _, o := range outcomes {
		switch {
		case o.Err != nil:
			errs = append(errs, fmt.Errorf("%s, planned for %s: %w", o.Event, o.At, o.Err))
		case o.Bites == 0:
			errs = append(errs, fmt.Errorf("%s, planned for %s, did not bite", o.Event, o.At))
		}
	}
	if len(plan) == 0 || len(outcomes) != len(plan) {
		errs = append(errs, fmt.Errorf("%d faults happened of %d", len(outcomes), len(plan)))
	}
	return errors.Join(errs...)
}

// goneWithin is how long it may take until nothing is left of clients: of leases that nobody
// renews, a few seconds, but for a machine with other things to do.
const goneWithin = time.Minute

// left judges what is there when the clients have gone: every lock can be had again, and
// nobody is left in the store.
func (c *campaign) left() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*goneWithin)
	defer cancel()
	pods := c.pods()
	errs := []error{load.EveryKey(ctx, c.world.Sockets()[0], keys, goneWithin)}
	orphans, err := check.Orphans(ctx, c.world.Store.View(), pods, goneWithin)
	for _, orphan := range orphans {
		errs = append(errs, orphan)
	}
	return errors.Join(append(errs, err)...)
}

// judge judges the history.
func (c *campaign) judge(length time.Duration) error {
	ops, err := c.history()
	if err != nil {
		return err
	}
	r := c.rules(length)
	report := check.All(ops, r)
	c.printf("%+v", report.Counts)
	if report.Err() == nil {
		return nil
	}
	return errors.Join(report.Err(),
		c.write("history.jsonl", func(f *os.File) error { return history.WriteAll(f, ops) }),
		c.write("history.html", func(f *os.File) error { return check.HTML(f, ops, r, report.Violations) }))
}

func (c *campaign) write(name string, what func(f *os.File) error) error {
	f, err := os.Create(filepath.Join(c.logs, name))
	if err != nil {
		return err
	}
	return errors.Join(what(f), f.Close())
}

// history puts together what all processes have written.
func (c *campaign) history() ([]history.Op, error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	var readers []io.Reader
	for _, name := range c.records() {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		files, readers = append(files, f), append(readers, f)
	}
	return history.Read(readers...)
}
