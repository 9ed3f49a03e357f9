package sidecar

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/store"
)

// inheritance is what other runs have left that did not stop cleanly: the names of instances whose leases may still hold locks. Their apps have lost their
// connections, so these leases may be revoked at once. Runs that live, such as the one that is just replaced, are not in it.
type inheritance struct {
	log *slog.Logger

	mu   sync.Mutex
	runs []*instance.Ended
	// reaping are those that a pod's manager revokes, or reapRest.
	reaping map[leftover]bool
}

// leftover is a note that a run has left.
type leftover struct {
	run  *instance.Ended
	note string
}

// take takes what runs have left that have ended since, and reports whether others live. If that cannot be seen, they may.
func (in *inheritance) take(run *instance.Run) (rivals bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	names, err := run.Others()
	if err != nil {
		in.log.Warn("cannot see what other runs have left: their leases end by themselves", "error", err)
		rivals = true
	}
	for _, name := range names {
		if slices.ContainsFunc(in.runs, func(e *instance.Ended) bool { return e.Name == name }) {
			continue
		}
		ended, lives, err := run.Take(name)
		if err != nil {
			in.log.Warn("cannot read all that another run has left: those leases end by themselves", "run", name, "error", err)
		}
		rivals = rivals || lives || ended == nil && err != nil
		if ended != nil {
			in.log.Info("another run did not stop cleanly; revoking its leases", "run", name, "instances", len(ended.Left))
			in.runs = append(in.runs, ended)
		}
	}
	in.closeEmpty()
	return rivals
}

// closeEmpty closes the runs that have left nothing more. The caller holds in.mu.
func (in *inheritance) closeEmpty() {
	in.runs = slices.DeleteFunc(in.runs, func(run *instance.Ended) bool {
		if len(run.Left) > 0 {
			return false
		}
		in.closeRun(run)
		return true
	})
}

func (in *inheritance) closeRun(run *instance.Ended) {
	if err := run.Close(); err != nil {
		in.log.Warn("cannot remove the files of an earlier run", "run", run.Name, "error", err)
	}
}

// of returns what served a pod before in the same namespace, for the caller to revoke. done must be called when it has no leases any more, and
// giveUp when the caller ends.
func (in *inheritance) of(k hostfolder.Key, namespace string) (instances []string, done, giveUp func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	var mine []leftover
	for _, run := range in.runs {
		for note, n := range run.Left {
			if one := (leftover{run, note}); n.Pod == string(k) && n.Namespace == namespace && !in.reaping[one] {
				instances, mine = append(instances, n.Instance), append(mine, one)
				in.begin(one)
			}
		}
	}
	return instances, func() { in.reaped(mine) }, func() { in.giveUp(mine) }
}

func (in *inheritance) begin(one leftover) {
	if in.reaping == nil {
		in.reaping = map[leftover]bool{}
	}
	in.reaping[one] = true
}

func (in *inheritance) giveUp(all []leftover) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, one := range all {
		delete(in.reaping, one)
	}
}

func (in *inheritance) reaped(all []leftover) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, one := range all {
		if err := one.run.Reaped(one.note); err != nil {
			in.log.Warn("cannot record that the leases of an earlier run are reaped", "error", err)
		}
		delete(in.reaping, one)
	}
}

// rest is what nobody revokes yet: the caller does. Of the pods that are just being opened, each takes its own.
func (in *inheritance) rest() (all []leftover, noted []instance.Noted) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, run := range in.runs {
		for note, n := range run.Left {
			if one := (leftover{run, note}); !in.reaping[one] {
				in.begin(one)
				all, noted = append(all, one), append(noted, n)
			}
		}
	}
	return all, noted
}

// reapRest revokes the leases that no pod's manager does: of pods that are gone, or were served here already when the run ended.
func (in *inheritance) reapRest(ctx context.Context, n *node) {
	all, noted := in.rest()
	if len(all) == 0 {
		return
	}
	n.ending.Go(func() {
		defer n.contain(n.log, "revoking leases of an earlier run")
		defer in.giveUp(all)
		for i := range all {
			if err := n.reap(ctx, noted[i]); err != nil {
				in.log.Warn("cannot revoke the leases that another run had for a pod, trying again; they end by themselves, too", "instance", noted[i].Instance, "error", err)
				continue
			}
			in.reaped(all[i : i+1])
		}
	})
}

// reap revokes the leases of an instance through a view of its namespace.
func (n *node) reap(ctx context.Context, noted instance.Noted) error {
	const tries, pause = 5, time.Second
	id, err := instance.New("reaper", n.Version)
	if err != nil {
		return err
	}
	st := n.space.View(store.Identity{Namespace: noted.Namespace, Instance: id, Pod: n.Config.Pod})
	defer st.Stop()
	if err := st.Start(ctx, nil); err != nil {
		return err
	}
	for range tries {
		limited, cancel := context.WithTimeout(ctx, n.Config.StoreTimeout)
		err = st.ReapInstance(limited, noted.Instance)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return err
}

// close gives up what is left to the next run.
func (in *inheritance) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, run := range in.runs {
		in.closeRun(run)
	}
	in.runs = nil
}
