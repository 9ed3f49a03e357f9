// Package locksidecarcron runs each tick of a job of robfig/cron in one process of all that plan it. It is a module of its own, because the client needs only
// the standard library.
//
//	fleet := locksidecarcron.New(client, locksidecarcron.Options{})
//	scheduler := cron.New(cron.WithLocation(time.UTC))
//	fleet.AddFunc(scheduler, "close-books", "0 3 * * *", func(ctx context.Context, lock *locksidecar.Lock) error {
//		return closeBooks(ctx, lock.Token())
//	})
//	scheduler.Start()
//
// # Ticks
//
// All processes have the same schedule in the same time zone. A planned time of a job is a tick. Whoever is first takes its key, tick:job:NAME@TIME, which
// nobody gets again for [Options.MinHold]: so a process whose clock is late skips it. The run has the lock job:NAME, so runs do not overlap: a
// tick is skipped in all processes while an earlier run goes on anywhere, unless [Options.Wait] lets it wait. The clients for Python and Node do the same,
// with the same keys.
//
// Intervals (@every) begin when a process starts, so a tick is the period, counted from 1970, that the time falls into. They are a day at most.
package locksidecarcron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

const (
	defaultMinHold = 10 * time.Minute
	// day is the longest time for which the sidecar holds a key.
	day = 24 * time.Hour
)

// Options are those of all jobs of a fleet. The zero value has the defaults.
type Options struct {
	// Context is that of all runs. Default: one that does not end.
	Context context.Context //nolint:containedctx // robfig/cron passes none
	// MinHold is for how long nobody runs a tick again, of an interval after its period. A process that is late by more than half of it skips the tick.
	// Default: 10 minutes.
	MinHold time.Duration
	// Wait is how long a tick waits for the end of an earlier run. Default: not at all.
	Wait time.Duration
	// Prefix is what is before the name of a job in the key of its lock. Default: job:.
	Prefix string
	// Logger gets a line for each tick that does not run here, and the error of a run. Default: cron.DefaultLogger, which writes only errors.
	Logger cron.Logger
}

// Run is the function of a job. The context ends when the lock is lost, with the loss as its cause: see [locksidecar.Client.Do].
type Run func(ctx context.Context, lock *locksidecar.Lock) error

// Fleet is all processes that plan the same jobs, as seen from this one.
type Fleet struct {
	client *locksidecar.Client
	Options
}

// New makes no call.
func New(client *locksidecar.Client, options Options) *Fleet {
	if options.Context == nil {
		options.Context = context.Background()
	}
	if options.MinHold <= 0 {
		options.MinHold = defaultMinHold
	}
	if options.Prefix == "" {
		options.Prefix = "job:"
	}
	if options.Logger == nil {
		options.Logger = cron.DefaultLogger
	}
	return &Fleet{client, options}
}

// AddFunc adds a job with a specification such as "0 3 * * *", as [cron.ParseStandard] reads it.
func (f *Fleet) AddFunc(scheduler *cron.Cron, name, spec string, run Run) (cron.EntryID, error) {
	schedule, err := cron.ParseStandard(spec)
	if err != nil {
		return 0, err
	}
	return f.Schedule(scheduler, name, schedule, run)
}

// Schedule adds a job with a schedule, whose times depend on nothing but the clock. The name names its lock, and is the same in all processes.
func (f *Fleet) Schedule(scheduler *cron.Cron, name string, schedule cron.Schedule, run Run) (cron.EntryID, error) {
	if name == "" {
		return 0, errors.New("locksidecarcron: the job has no name, which is that of its lock in all processes")
	}
	j := &job{fleet: f, name: name, schedule: schedule, location: scheduler.Location(), run: run}
	if interval, ok := schedule.(cron.ConstantDelaySchedule); ok {
		if j.every = interval.Delay; j.every > day {
			return 0, fmt.Errorf("locksidecarcron: job %q: its interval of more than a day begins when the process does, so each process plans other times; use a specification such as 0 3 * * 1", name)
		}
	}
	return scheduler.Schedule(schedule, j), nil
}

// job is a [cron.Job].
type job struct {
	fleet    *Fleet
	name     string
	schedule cron.Schedule
	location *time.Location
	every    time.Duration // of an interval
	run      Run
}

// Run is called by the scheduler, which does not say for which planned time.
func (j *job) Run() {
	f := j.fleet
	at, hold, ok := j.tick(time.Now())
	if !ok {
		f.Logger.Info("skip: no time was planned within half of MinHold, so others may have run the tick", "job", j.name, "MinHold", f.MinHold)
		return
	}
	lockKey := f.Prefix + j.name
	tick := "tick:" + lockKey + "@" + at.UTC().Format("2006-01-02T15:04:05.000Z")
	taken, err := f.client.Acquire(f.Context, tick, locksidecar.Wait(0), locksidecar.MinHold(hold))
	if err == nil {
		err = taken.Release()
	}
	if err != nil {
		j.isSkipped(err, "another process has the tick", tick)
		return
	}
	began := false
	err = f.client.Do(f.Context, lockKey, func(ctx context.Context, lock *locksidecar.Lock) error {
		began = true
		return j.run(ctx, lock)
	}, locksidecar.Wait(f.Wait), locksidecar.Data(map[string]string{"tick": tick}))
	switch {
	case err == nil:
	case began:
		f.Logger.Error(err, "the run has failed", "job", j.name, "tick", tick)
	default:
		j.isSkipped(err, "an earlier run goes on, so the tick is skipped in all processes", tick)
	}
}

// isSkipped says why a tick does not run here.
func (j *job) isSkipped(err error, why, tick string) {
	var e *locksidecar.Error
	if errors.Is(err, locksidecar.ErrLockHeld) && errors.As(err, &e) {
		by := "unknown"
		if e.Holder != nil {
			by = e.Holder.Pod
		}
		j.fleet.Logger.Info("skip: "+why, "job", j.name, "tick", tick, "pod", by)
		return
	}
	j.fleet.Logger.Error(err, "the tick does not run here, because its lock cannot be acquired", "job", j.name, "tick", tick)
}

// tick is the planned time that this run is for, and for how long its key is held. It is the last one within half of the MinHold; an older one may be free
// again.
func (j *job) tick(now time.Time) (at time.Time, hold time.Duration, ok bool) {
	most := j.fleet.MinHold
	if j.every > 0 {
		every := j.every.Milliseconds()
		at = time.UnixMilli(now.UnixMilli() / every * every)
		hold = min(j.every+most, day)
		return at, hold, !now.After(at.Add(hold - most/2)) // only if the limit of a day has cut it
	}
	now = now.In(j.location)
	for next := j.schedule.Next(now.Add(-most / 2)); !next.IsZero() && !next.After(now); next = j.schedule.Next(next) {
		at, ok = next, true
	}
	return at, most, ok
}
