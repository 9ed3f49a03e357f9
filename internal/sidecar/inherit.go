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

// inheritance is what earlier runs have left that did not stop cleanly: the names of instances whose leases may still hold locks. Their apps have lost their
// connections, so these leases may be revoked at once. Runs that live, such as the one that is just replaced, are not in it.
type inheritance struct {
	log *slog.Logger

	mu   sync.Mutex
	runs []*instance.Ended
}

// take takes what runs have left that have ended since, and reports whether others live.
func (in *inheritance) take(run *instance.Run) (rivals bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	names, err := run.Others()
	if err != nil {
		in.log.Warn("cannot see what earlier runs have left: their leases end by themselves", "error", err)
	}
	for _, name := range names {
		if slices.ContainsFunc(in.runs, func(e *instance.Ended) bool { return e.Name == name }) {
			continue
		}
		ended, err := run.Take(name)
		if err != nil {
			in.log.Warn("cannot read all that an earlier run has left: those leases end by themselves", "run", name, "error", err)
		}
		if ended == nil {
			rivals = true
			continue
		}
		in.log.Info("an earlier run did not stop cleanly; revoking its leases", "run", name, "pods", len(ended.Left))
		in.runs = append(in.runs, ended)
	}
	return rivals
}

// of returns what served a pod before in the same namespace. done must be called when it has no leases any more.
func (in *inheritance) of(k hostfolder.Key, namespace string) (instances []string, done func()) {
	in.mu.Lock()
	defer in.mu.Unlock()
	var from []*instance.Ended
	for _, run := range in.runs {
		if n, ok := run.Left[string(k)]; ok && n.Namespace == namespace {
			instances, from = append(instances, n.Instance), append(from, run)
		}
	}
	return instances, func() { in.reaped(string(k), from) }
}

func (in *inheritance) reaped(pod string, from []*instance.Ended) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, run := range from {
		if err := run.Reaped(pod); err != nil {
			in.log.Warn("cannot record that the leases of an earlier run are reaped", "error", err)
		}
	}
}

// orphan is what served a pod that is not there any more, or has another namespace now.
type orphan struct {
	pod   string
	noted instance.Noted
	run   *instance.Ended
}

func (in *inheritance) orphans(n *node) (all []orphan) {
	in.mu.Lock()
	defer in.mu.Unlock()
	served := n.served()
	for _, run := range in.runs {
		for pod, noted := range run.Left {
			p := served[hostfolder.Key(pod)]
			if p == nil || p.noted.Namespace != noted.Namespace {
				all = append(all, orphan{pod, noted, run})
			}
		}
	}
	return all
}

// reapRest revokes the leases of pods that are not served now: nobody else does.
func (in *inheritance) reapRest(ctx context.Context, n *node) {
	all := in.orphans(n)
	if len(all) == 0 {
		return
	}
	n.ending.Go(func() {
		for _, o := range all {
			if err := n.reap(ctx, o.noted); err != nil {
				in.log.Warn("cannot revoke the leases that an earlier run had for a pod that is gone: they end by themselves", "instance", o.noted.Instance, "error", err)
				continue
			}
			in.reaped(o.pod, []*instance.Ended{o.run})
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
		if err := run.Close(); err != nil {
			in.log.Warn("cannot remove the files of an earlier run", "error", err)
		}
	}
	in.runs = nil
}
