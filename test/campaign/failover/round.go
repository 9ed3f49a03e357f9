package failover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/check"
	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/load"
)

// kind is what happens to a primary.
type kind string

const (
	kill   kind = "kill"
	stop   kind = "stop"
	behind kind = "behind"
)

// kinds come one after the other, again and again.
var kinds = []kind{kill, stop, behind, kill, kill}

const (
	clients, keys = 12, 8
	// loadTTL is what clients reckon with: sessions ask for it, or for twice or half of it.
	loadTTL = 2 * time.Second
	// findsWithin is how soon a sidecar finds a new primary.
	findsWithin = 2 * time.Second
)

// least is what must have happened in a failover. Nobody gets a lock in an outage, so that
// it is not much.
var least = check.Counts{Grants: 40, Waited: 10, Drops: 5, Faults: 1, Shares: 10}

// round is one failover.
type round struct {
	*scene
	kind
	notes  *history.Recorder
	loads  *history.Recorder
	ended  chan error
	counts check.Counts
	// old is the node that was the primary; thaw lets it go on where it was stopped.
	old  int
	thaw func()
	// doomed and given are of an asynchronous failover: a lock that is granted, and one that
	// is released, when the standby hears nothing any more.
	doomed, given *client
	permits       *permits
}

func (r *round) run(name string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := r.start(ctx, name); err != nil {
		return err
	}
	<-time.After(1500 * time.Millisecond) // traffic
	r.old = r.primary
	fault := r.notes.Begin(history.Op{Kind: history.Fault, Sidecar: -1, Note: string(r.kind)})
	forgets := r.notes.Begin(history.Op{Kind: history.Forgets, Sidecar: -1})
	err := r.strike(name)
	writable, err2 := r.failOver(err)
	if err2 != nil {
		return err2
	}
	if r.kind == behind { // rivals ask in the quiet time, too
		go func() { r.permits.settled <- r.permits.settle(name) }()
	}
	err = errors.Join(r.foundInTime(writable, r.kind == stop), r.settle(name, writable.direct))
	<-time.After(time.Second) // traffic
	err = errors.Join(err, r.comeBack(), r.kept())
	if err == nil {
		err = await("enough has happened", r.enough)
	}
	r.notes.End(forgets)
	r.notes.End(fault)
	cancel()
	err = errors.Join(err, <-r.ended, r.judge(name))
	if err != nil {
		return err
	}
	return r.join()
}

// fallBehind lets the standby miss a grant and a release.
func (r *round) fallBehind(name string) error {
	r.doomed, r.given = &client{socket: r.sockets()[0]}, &client{socket: r.sockets()[0]}
	if !r.given.acquire(givenKey(name)) {
		return errors.New("no lock to be released")
	}
	var err error
	if r.permits, err = r.newPermits(name); err != nil {
		return err
	}
	r.notes.Begin(history.Op{Kind: history.Unpromised, Sidecar: -1}) // to the end
	if err := errors.Join(r.synchronous(false), r.deafen()); err != nil {
		return err
	}
	if !r.doomed.acquire(doomedKey(name)) {
		return errors.New("no lock to be forgotten")
	}
	<-time.After(300 * time.Millisecond) // traffic that is forgotten
	return errors.Join(r.permits.isForgotten(name), r.given.release(givenKey(name)))
}

func doomedKey(name string) string { return "doomed:" + name }
func givenKey(name string) string  { return "given:" + name }

// settle waits, after an asynchronous failover, until all know what was forgotten: for how
// long do two believe to hold, and when can be had what came back?
func (r *round) settle(name string, writable time.Time) error {
	if r.kind != behind {
		return nil
	}
	defer r.doomed.close()
	defer r.given.close()
	if err := <-r.permits.settled; err != nil {
		return err
	}
	defer r.permits.close()
	rival := &client{socket: r.sockets()[1]}
	defer rival.close()
	if err := await("the forgotten lock is granted", func() error { return rival.asks(doomedKey(name)) }); err != nil {
		return err
	}
	granted, believed := time.Now(), r.doomed.holds(doomedKey(name)) == nil
	if rival.token <= r.doomed.token {
		return fmt.Errorf("token %d after %d", rival.token, r.doomed.token)
	}
	for r.doomed.holds(doomedKey(name)) == nil {
		if time.Since(granted) > 2*ttl {
			return fmt.Errorf("two believe to hold %s for more than %s", doomedKey(name), 2*ttl)
		}
		time.Sleep(2 * time.Millisecond) // the pause of a poll
	}
	var both time.Duration // without the time of the question if the first answer was no
	if believed {
		both = time.Since(granted)
	}
	r.overlaps = append(r.overlaps, both)
	var err error
	if both > ttl || *quiet && believed {
		err = fmt.Errorf("two believed to hold %s for %s", doomedKey(name), both)
	}
	err = errors.Join(err, rival.holds(doomedKey(name)), rival.release(doomedKey(name)))
	err = errors.Join(err, await("what came back is had", func() error { return rival.asks(givenKey(name)) }))
	r.returned = append(r.returned, time.Since(writable))
	return errors.Join(err, rival.release(givenKey(name)))
}

// start starts the clients, when nothing is left of those before.
func (r *round) start(ctx context.Context, name string) error {
	if err := load.EveryKey(ctx, r.sockets()[0], keys, 2*ttl); err != nil {
		return err
	}
	fence, err := load.OpenFence(filepath.Join(r.config.Folder, "fence-"+name), keys)
	if err != nil {
		return err
	}
	r.notes, r.loads, r.ended = history.NewRecorder("world", nil), history.NewRecorder("app-"+name, nil), make(chan error, 1)
	seed := uint64(time.Now().UnixNano())
	go func() {
		err := load.Run(ctx, load.Config{
			Sockets: r.sockets(), Clients: clients, Keys: keys, Seed: seed, Recorder: r.loads, TTL: loadTTL, Fence: fence, Force: true,
		})
		r.ended <- errors.Join(err, fence.Close())
	}()
	return nil
}

// strike makes the primary fail.
func (r *round) strike(name string) error {
	switch r.kind {
	case stop:
		r.thaw, _ = r.leader().Freeze()
		// Nobody declares a server dead before those who ask it have.
		<-time.After(storeTimeout + 500*time.Millisecond)
		return nil
	case behind:
		if err := r.fallBehind(name); err != nil {
			return err
		}
	case kill:
	}
	r.leader().Halt()
	<-time.After(300 * time.Millisecond)
	return nil
}

// times are since when the new primary takes writes, and since when the PgBouncer leads
// there; and what an app needed meanwhile.
type times struct {
	direct, pooled time.Time
	connects       *connects
}

func (r *round) failOver(before error) (t times, err error) {
	if before != nil {
		return times{}, before
	}
	t.connects = measure(r.standby().URL(r.database)) // it takes those who only read already
	t.direct, err = r.promote()
	if err == nil {
		err = r.pooler.Point(r.leader())
	}
	t.pooled = time.Now()
	if err != nil {
		t.connects.stop()
	}
	return t, err
}

// comeBack lets the old primary come back for a while. It knows of no other.
func (r *round) comeBack() error {
	old := r.nodes[r.old]
	since := time.Now()
	if r.kind == stop {
		r.thaw()
	} else if err := old.Again(); err != nil {
		return err
	}
	var err error
	if r.kind == behind { // it waits for no standby: whoever promotes another must end it
		<-time.After(time.Second)
	} else {
		err = r.faithful(r.old, 2500*time.Millisecond)
	}
	for _, p := range r.probers {
		if _, missing := p.grantedAfter(since, time.Since(since)+patience); missing != nil {
			err = errors.Join(err, fmt.Errorf("when the old primary was back: %w", missing))
		}
	}
	old.Halt()
	return err
}

// rules are those of a round.
func rules() check.Rules {
	r := check.DefaultRules()
	r.Least = least
	r.Handoff = patience // nobody observes how slow the machine is in the moments before the fault
	return r
}

// enough is nil when the history can be judged.
func (r *round) enough() error {
	ops, err := r.history()
	if err == nil && !check.Enough(ops, rules()) {
		err = fmt.Errorf("of %+v too little in %d operations", least, len(ops))
	}
	return err
}

// history is what clients and faults have noted.
func (r *round) history() ([]history.Op, error) {
	ops, err := r.loads.Ops()
	if err != nil {
		return nil, err
	}
	noted, err := r.notes.Ops()
	// A failover may give the lock of an unrenewed lease whose time was up a minute more, for
	// the clocks of two servers differ. Its holder was told before that it was over.
	ops = slices.DeleteFunc(ops, func(op history.Op) bool {
		return op.Kind == history.Confirm && op.Session == "" && op.Outcome == history.NotHeld
	})
	return append(ops, noted...), err
}

// doubleHolders are the breaches of exclusion, and of the limits of shared keys, also where it is not promised without a quiet time.
func doubleHolders(ops []history.Op) []check.Violation {
	promised := slices.DeleteFunc(slices.Clone(ops), func(op history.Op) bool { return op.Kind == history.Unpromised })
	return slices.DeleteFunc(check.All(promised, rules()).Violations, func(v check.Violation) bool { return v.Rule != "exclusion" && v.Rule != "permits" })
}

// judge judges the history.
func (r *round) judge(name string) error {
	ops, err := r.history()
	if err != nil {
		return err
	}
	report := check.All(ops, rules())
	r.counts = report.Counts
	if *quiet {
		report.Violations = append(report.Violations, doubleHolders(ops)...)
	}
	if report.Err() == nil {
		return nil
	}
	kept, err := os.Create(filepath.Join(r.config.Logs, "history-"+name+".jsonl"))
	if err == nil {
		err = errors.Join(history.WriteAll(kept, ops), kept.Close())
	}
	return errors.Join(report.Err(), err)
}
