// Command go is a program of the campaign on the client for Go: goroutines whose contexts are cancelled. Its argument is what it is to do, as JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

const (
	limit = 2
	// again is how long an object that all goroutines use may take until it was granted again, when nothing fails.
	again = 20 * time.Second
	// memory is how much its heap may take. A limit of the process would end the race detector, which maps much more than it uses.
	memory = 64 << 20
)

var (
	keys  = []string{"k0", "k1", "k2", "k3"}
	forms = []string{"do", "do", "acquire", "acquire", "try", "many", "semaphore", "permit", "nested", "locker"}
)

// errStruck is the campaign's cancellation.
var errStruck = errors.New("struck")

// task is what the campaign wants.
type task struct {
	Name      string   `json:"name"`
	Program   string   `json:"program"`
	Records   string   `json:"records"`
	Socket    string   `json:"socket"`
	Sidecar   int      `json:"sidecar"`
	Seed      uint64   `json:"seed"`
	Actors    int      `json:"actors"`
	Timeout   float64  `json:"timeout"`
	Reconnect float64  `json:"reconnect"`
	TTL       float64  `json:"ttl"`
	Forms     []string `json:"forms"`
	Offset    int64    `json:"offset"`
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// op is a line of the history.
type op struct {
	ID      string   `json:"id"`
	App     string   `json:"app"`
	Program string   `json:"program"`
	Pid     int      `json:"pid"`
	Sidecar int      `json:"sidecar"`
	Actor   int      `json:"actor"`
	Kind    string   `json:"kind"`
	Form    string   `json:"form,omitempty"`
	Keys    []string `json:"keys,omitempty"`
	Tokens  []int64  `json:"tokens,omitempty"`
	Limit   int      `json:"limit,omitempty"`
	Wait    int64    `json:"wait"`
	Cancel  int64    `json:"cancel,omitempty"`
	Hold    string   `json:"hold,omitempty"`
	Outcome string   `json:"outcome,omitempty"`
	Error   string   `json:"error,omitempty"`
	Text    string   `json:"text,omitempty"`
	Call    int64    `json:"call"`
	Return  int64    `json:"return,omitempty"`
}

// program is one client, and what its goroutines share.
type program struct {
	task      task
	client    *locksidecar.Client
	semaphore *locksidecar.Semaphore
	forms     []string

	mu      sync.Mutex // of the history
	records *os.File
	number  int
}

func main() {
	if os.Args[1] == "relay" {
		relay(os.Args[2], os.Args[3])
	}
	p := &program{}
	must(json.Unmarshal([]byte(os.Args[1]), &p.task))
	go limitMemory()
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	go func() { <-ended; os.Exit(0) }()
	var err error
	p.records, err = os.OpenFile(p.task.Records, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	must(err)
	socket := p.task.Socket
	if p.task.Seed%2 == 0 { // so every second start of the program has one
		socket = throughRelay(socket)
	}
	p.client = locksidecar.New(locksidecar.Config{
		Socket: socket, Name: p.task.Name, Timeout: seconds(p.task.Timeout), Reconnect: seconds(p.task.Reconnect),
	})
	p.semaphore = p.client.Semaphore("s0", limit, p.ttl())
	p.forms = forms
	if len(p.task.Forms) > 0 {
		p.forms = slices.DeleteFunc(slices.Clone(forms), func(form string) bool { return !slices.Contains(p.task.Forms, form) })
	}
	p.rounds()
	select {} // until SIGTERM
}

// limitMemory ends the program if it grows.
func limitMemory() {
	for range time.Tick(time.Second) {
		var m runtime.MemStats
		if runtime.ReadMemStats(&m); m.HeapInuse > memory {
			panic(fmt.Sprintf("the heap has %d bytes", m.HeapInuse))
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (p *program) ttl() locksidecar.Option { return locksidecar.TTL(seconds(p.task.TTL)) }

// The history: a line for each beginning and each end.

func (p *program) now() int64 {
	var t unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &t))
	return t.Nano() + p.task.Offset
}

func (p *program) write(o *op) {
	text, err := json.Marshal(o)
	must(err)
	_, err = p.records.Write(append(text, '\n'))
	must(err)
}

// begin notes that something begins. Its fields are those of o.
func (p *program) begin(kind string, actor int, o op) *op {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	o.ID, o.Kind, o.Actor = fmt.Sprintf("%s-%d", p.task.Name, p.number), kind, actor
	o.App, o.Program, o.Sidecar, o.Pid, o.Call = p.task.Name, p.task.Program, p.task.Sidecar, os.Getpid(), p.now()
	p.write(&o)
	return &o
}

func (p *program) end(o *op, outcome string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.Outcome, o.Return = outcome, p.now()
	p.write(o)
}

// cancel notes that a call is cancelled, which may never end.
func (p *program) cancel(o *op) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.Return == 0 {
		o.Cancel = p.now()
		p.write(o)
	}
}

func (p *program) fail(o *op, err error) {
	var e *locksidecar.Error
	isOurs := errors.As(err, &e)
	switch {
	case errors.Is(err, errStruck) && (!isOurs || !errors.Is(err, locksidecar.ErrLockLost)):
		p.end(o, "cancelled")
	case o.Kind == "acquire" && (o.Wait > 0 && errors.Is(err, locksidecar.ErrWaitTimeout) || o.Wait == 0 && isOurs && e.Code == "held"):
		p.end(o, "timeout")
	default:
		o.Error, o.Text = fmt.Sprintf("%T", err), err.Error()
		if isOurs {
			o.Error = e.Code
		}
		p.end(o, "failed")
	}
}

// hold is one acquire, and what becomes of it.
type hold struct {
	*program

	actor    int
	rng      *rand.Rand
	op       *op
	under    *op // what a cancellation meets, with program.mu
	released *op
}

func (h *hold) options() []locksidecar.Option {
	options := []locksidecar.Option{h.ttl(), locksidecar.Data(h.op.ID), locksidecar.OnLost(h.lost)}
	if h.op.Wait >= 0 {
		options = append(options, locksidecar.Wait(time.Duration(h.op.Wait)*time.Millisecond))
	}
	return options
}

func (h *hold) lost(err error) {
	if e, ok := errors.AsType[*locksidecar.Error](err); ok {
		h.end(h.begin("lost", h.actor, op{Hold: h.op.ID, Keys: []string{e.Key}}), "done")
	}
}

func (h *hold) got(locks ...*locksidecar.Lock) {
	h.mu.Lock()
	h.op.Keys, h.op.Tokens = nil, nil
	for _, lock := range locks {
		h.op.Keys, h.op.Tokens = append(h.op.Keys, lock.Key()), append(h.op.Tokens, lock.Token())
	}
	h.mu.Unlock()
	h.end(h.op, "granted")
}

// rest is the work under locks. Now and then it is longer than a lease.
func (h *hold) rest() {
	pause := time.Duration([]int{0, 5, 20, 50}[h.rng.IntN(4)]) * time.Millisecond
	if h.rng.Float64() >= 0.98 {
		pause = time.Second + time.Duration(h.rng.Float64()*7*float64(time.Second))
	}
	time.Sleep(pause)
}

// leaves: from here on it is released.
func (h *hold) leaves() {
	h.released = h.begin("release", h.actor, op{Form: h.op.Form, Hold: h.op.ID})
}

func (h *hold) body(locks ...*locksidecar.Lock) error {
	h.got(locks...)
	h.rest()
	h.leaves()
	return nil
}

// release releases a lock, until it is released.
func (h *hold) release(lock *locksidecar.Lock) error {
	for {
		h.leaves()
		err := lock.Release()
		if !errors.Is(err, locksidecar.ErrUnavailable) {
			return err
		}
		h.fail(h.released, err)
		time.Sleep(200 * time.Millisecond)
	}
}

func (h *hold) run(ctx context.Context, wanted []string) error {
	key, options := wanted[0], h.options()
	switch h.op.Form {
	case "do":
		return h.client.Do(ctx, key, func(_ context.Context, lock *locksidecar.Lock) error { return h.body(lock) }, options...)
	case "many":
		return h.client.DoMany(ctx, wanted, func(_ context.Context, locks locksidecar.Locks) error { return h.body(locks...) }, options...)
	case "semaphore":
		return h.semaphore.Do(ctx, func(_ context.Context, permit *locksidecar.Lock) error { return h.body(permit) }, options...)
	case "nested":
		return h.nested(ctx, key, append(options, locksidecar.Reentrant()))
	case "locker":
		locker := h.client.Locker(key, options...)
		locker.Lock()
		_ = h.body(locker.Held())
		locker.Unlock()
		return nil
	case "try":
		lock, ok, err := h.client.TryAcquire(ctx, key, options...)
		if err == nil && !ok {
			h.end(h.op, "timeout")
		}
		if err != nil || !ok {
			return err
		}
		return h.holds(lock)
	}
	acquire := func() (*locksidecar.Lock, error) { return h.client.Acquire(ctx, key, options...) }
	if h.op.Form == "permit" {
		acquire = func() (*locksidecar.Lock, error) { return h.semaphore.Acquire(ctx, options...) }
	}
	lock, err := acquire()
	if err != nil {
		return err
	}
	return h.holds(lock)
}

func (h *hold) holds(lock *locksidecar.Lock) error {
	h.got(lock)
	h.rest()
	return h.release(lock)
}

func (h *hold) nested(ctx context.Context, key string, options []locksidecar.Option) error {
	return h.client.Do(ctx, key, func(ctx context.Context, lock *locksidecar.Lock) error {
		h.got(lock)
		enter := h.begin("enter", h.actor, op{Form: "nested", Keys: []string{key}, Wait: h.op.Wait, Hold: h.op.ID})
		h.mu.Lock()
		enter.Cancel, h.under = h.op.Cancel, enter
		h.mu.Unlock()
		err := h.client.Do(ctx, key, func(_ context.Context, inner *locksidecar.Lock) error {
			h.mu.Lock()
			enter.Tokens = []int64{inner.Token()}
			h.mu.Unlock()
			h.end(enter, "granted")
			h.rest()
			enter = h.begin("leave", h.actor, op{Form: "nested", Hold: h.op.ID})
			return nil
		}, options...)
		if err != nil {
			h.fail(enter, err)
		} else {
			h.end(enter, "done")
		}
		h.leaves()
		return nil
	}, options...)
}

func (p *program) act(actor int, rng *rand.Rand) {
	form := p.forms[rng.IntN(len(p.forms))]
	wait := []int64{0, 50, 200, 1000, 2000, -1}[rng.IntN(6)]
	wanted := slices.Clone(keys)
	rng.Shuffle(len(wanted), func(i, j int) { wanted[i], wanted[j] = wanted[j], wanted[i] })
	wanted = wanted[:1]
	switch {
	case form == "many":
		wanted = append(wanted, keys[(slices.Index(keys, wanted[0])+1)%len(keys)])
	case form == "semaphore" || form == "permit":
		wanted = []string{"s0"}
	case rng.Float64() < 0.4:
		// Now and then a key that nobody else wants: the call is quick then, so a cancellation meets all its steps.
		wanted = []string{fmt.Sprintf("own:%s:%d", p.task.Name, actor)}
	}
	begun := op{Form: form, Keys: wanted, Wait: wait}
	switch form {
	case "try":
		begun.Wait = 0
	case "locker":
		begun.Wait = -1 // it has no limit, and no context
	case "semaphore", "permit":
		begun.Limit = limit
	}
	ctx, strike := context.WithCancelCause(context.Background())
	defer strike(nil)
	h := &hold{program: p, actor: actor, rng: rng, op: p.begin("acquire", actor, begun)}
	h.under = h.op
	if form != "locker" && rng.Float64() < 0.5 {
		delay := time.Duration([]int{0, 100, 300, 600, 1000, 5000, 50_000, 500_000, 2_000_000}[rng.IntN(9)]) * time.Microsecond
		timer := time.AfterFunc(delay, func() {
			p.mu.Lock()
			under := h.under
			p.mu.Unlock()
			p.cancel(under)
			strike(errStruck)
		})
		defer timer.Stop()
	}
	h.ends(func() error { return h.run(ctx, wanted) })
}

// holdThrough holds a lock until it is lost, also while the sidecar is frozen, and then again, until calm is closed.
func (p *program) holdThrough(calm <-chan struct{}) {
	actor, key := p.task.Actors, "through:"+p.task.Name
	for {
		h := &hold{program: p, actor: actor, op: p.begin("acquire", actor, op{Form: "through", Keys: []string{key}, Wait: -1})}
		h.ends(func() error {
			lock, err := p.client.Acquire(context.Background(), key, h.options()...)
			if err != nil {
				return err
			}
			h.got(lock)
			select {
			case <-lock.Lost():
			case <-calm:
			}
			return h.release(lock)
		})
		select {
		case <-calm:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ends notes how it ended, also by a panic of a Locker.
func (h *hold) ends(run func() error) {
	var err error
	func() {
		defer func() {
			if panicked, is := recover().(error); is {
				err = panicked
			}
		}()
		err = run()
	}()
	h.mu.Lock()
	granted := h.op.Outcome
	h.mu.Unlock()
	switch {
	case err != nil && granted == "":
		h.fail(h.op, err)
	case err != nil:
		if h.released == nil {
			h.leaves()
		}
		h.fail(h.released, err)
	case h.released != nil:
		h.end(h.released, "done")
	}
}

// work lets all goroutines work until calm is closed.
func (p *program) work(calm <-chan struct{}) *sync.WaitGroup {
	var all sync.WaitGroup
	all.Go(func() { p.holdThrough(calm) })
	for actor := range p.task.Actors {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(p.task.Seed, uint64(actor)))
			for {
				p.act(actor, rng)
				select {
				case <-calm:
					return
				case <-time.After(time.Duration(rng.Float64() * float64(50*time.Millisecond))):
				}
			}
		})
	}
	return &all
}

// rounds works until the campaign says calm, and so on until it ends.
func (p *program) rounds() {
	calm := make(chan struct{})
	working := p.work(calm)
	var kept *locksidecar.Lock
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		switch input.Text() {
		case "calm":
			close(calm)
			working.Wait()
			var err error
			kept, err = p.client.Acquire(context.Background(), "keep:"+p.task.Name, locksidecar.Wait(again), p.ttl(), locksidecar.Data("kept"))
			must(err)
			p.quiet(op{Keys: []string{kept.Key()}, Tokens: []int64{kept.Token()}})
		case "again":
			must(kept.Release())
			p.useAgain()
			p.quiet(op{Form: "again"})
		default:
			calm = make(chan struct{})
			working = p.work(calm)
		}
	}
	select {
	case <-calm:
	default:
		close(calm)
	}
	working.Wait()
	must(p.client.Close())
	p.quiet(op{Form: "closed"})
}

func (p *program) quiet(o op) { p.end(p.begin("quiet", -1, o), "done") }

func (p *program) useAgain() {
	ctx := context.Background()
	use := func(form string, wanted []string, run func() error) {
		o := p.begin("again", -1, op{Form: form, Keys: wanted})
		if err := run(); err != nil {
			p.fail(o, err)
			return
		}
		p.end(o, "done")
	}
	release := func(lock *locksidecar.Lock, err error) error {
		if err != nil {
			return err
		}
		return lock.Release()
	}
	for _, key := range keys {
		use("acquire", []string{key}, func() error { return release(p.client.Acquire(ctx, key, locksidecar.Wait(again))) })
	}
	use("permit", []string{"s0"}, func() error { return release(p.semaphore.Acquire(ctx, locksidecar.Wait(again))) })
	use("many", keys, func() error {
		locks, err := p.client.AcquireMany(ctx, keys, locksidecar.Wait(again))
		if err != nil {
			return err
		}
		return locks.Release()
	})
}
