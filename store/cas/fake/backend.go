package fake

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

var (
	errNotRunning = errors.New("not started, or stopped")
	errCut        = errors.New("the connection is cut")
	errLarge      = errors.New("a swap has too many conditions, letters or tokens")
)

// Fault says what happens to one request.
type Fault struct {
	// Slow is how long the request travels to the server, and then the answer back.
	Slow, SlowAnswer time.Duration
	// Refused: the request does not reach the server, and the client knows it.
	Refused bool
	// Lost: the client gets no answer. Late says what happened to the request: zero or more: the server carries
	// it out so much later; less than zero: never.
	Lost bool
	Late time.Duration
}

// Faults decide what goes wrong. A nil func means that nothing does. They are called from many goroutines.
type Faults struct {
	// Request is asked about each request. op is the name of the method of [cas.Backend].
	Request func(op string) Fault
	// Letter is asked about each letter to this instance.
	Letter func() LetterFault
	// Deaf: letters do not arrive, and the instance knows it.
	Deaf func() bool
}

// Backend is one instance's connection to a [Server].
type Backend struct {
	server   *Server
	instance string
	faults   Faults

	mu    sync.Mutex
	state int
	stop  chan struct{}
	work  sync.WaitGroup
}

const (
	fresh = iota
	started
	stopped
)

var _ cas.Backend = (*Backend)(nil)

// Open returns the connection of an instance.
func (s *Server) Open(instance string, faults Faults) *Backend {
	if faults.Request == nil {
		faults.Request = func(string) Fault { return Fault{} }
	}
	if faults.Letter == nil {
		faults.Letter = func() LetterFault { return LetterFault{} }
	}
	if faults.Deaf == nil {
		faults.Deaf = func() bool { return false }
	}
	return &Backend{server: s, instance: instance, faults: faults, stop: make(chan struct{})}
}

// Process returns what a process has of the server, whose instances all have these faults.
func (s *Server) Process(faults Faults) cas.Server { return process{s, faults} }

type process struct {
	server *Server
	faults Faults
}

func (process) Start(context.Context) error { return nil }

func (process) Stop() {}

func (p process) View(instance string) cas.Backend { return p.server.Open(instance, p.faults) }

// Only is a [cas.Server] with one view, which the caller has made.
func Only(view cas.Backend) cas.Server { return only{view} }

type only struct{ view cas.Backend }

func (only) Start(context.Context) error { return nil }

func (only) Stop() {}

func (o only) View(string) cas.Backend { return o.view }

// Start begins to deliver letters.
func (b *Backend) Start(_ context.Context, deliver func(cas.Letter), lost func()) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != fresh {
		return errNotRunning
	}
	b.state = started
	m := &mailbox{deliver: deliver, lost: lost, faults: b.faults.Letter, ready: make(chan struct{}, 1)}
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	b.server.mail[b.instance] = m
	b.work.Go(func() { m.run(b.stop) })
	return nil
}

// Stop ends the delivery. Late requests that are on their way still reach the server.
func (b *Backend) Stop() {
	b.mu.Lock()
	if b.state == started {
		close(b.stop)
		b.server.mu.Lock()
		delete(b.server.mail, b.instance)
		b.server.mu.Unlock()
	}
	b.state = stopped
	b.mu.Unlock()
	b.work.Wait()
}

// Ready is nil between Start and Stop.
func (b *Backend) Ready() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != started {
		return errNotRunning
	}
	return nil
}

// Hears implements [cas.Backend].
func (b *Backend) Hears() bool { return b.Ready() == nil && !b.faults.Deaf() }

// NextToken implements [cas.Backend].
func (b *Backend) NextToken(ctx context.Context) (next int64, err error) {
	quiet := time.Duration(0)
	err = b.request(ctx, "NextToken", func() {
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		next, quiet = b.server.tokens, time.Until(b.server.quiet)
	})
	if err == nil && quiet > 0 {
		err = &store.Error{Op: "NextToken", Err: &store.QuietError{Left: quiet}}
	}
	return next, err
}

// RaiseTokens implements [cas.Backend].
func (b *Backend) RaiseTokens(ctx context.Context, first int64) error {
	return b.request(ctx, "RaiseTokens", func() {
		b.server.mu.Lock()
		defer b.server.mu.Unlock()
		b.server.tokens = max(b.server.tokens, first)
	})
}

// request carries an operation out, with the faults that it was told.
func (b *Backend) request(ctx context.Context, op string, do func()) error {
	if err := errors.Join(b.Ready(), ctx.Err()); err != nil {
		return &store.Error{Op: op, Err: err}
	}
	fault := b.faults.Request(op)
	unknown := &store.Error{Op: op, Err: errCut, Unknown: true}
	switch {
	case fault.Refused:
		return &store.Error{Op: op, Err: errCut}
	case fault.Lost && fault.Late > 0:
		time.AfterFunc(fault.Late, do)
		return unknown
	case fault.Lost && fault.Late == 0:
		do()
		return unknown
	case fault.Lost:
		return unknown
	}
	if !rest(fault.Slow, ctx.Done()) { // the request is on its way
		time.AfterFunc(fault.Slow, do)
		return &store.Error{Op: op, Err: ctx.Err(), Unknown: true}
	}
	do()
	if !rest(fault.SlowAnswer, ctx.Done()) {
		return &store.Error{Op: op, Err: ctx.Err(), Unknown: true}
	}
	return nil
}

// Load reads records.
func (b *Backend) Load(ctx context.Context, keys []string, leases []store.LeaseID) (records []cas.Record, states []cas.LeaseState, err error) {
	keys, leases = slices.Clone(keys), slices.Clone(leases) // a late request must not see what the caller does with them then
	var r []cas.Record
	var s []cas.LeaseState
	if err := b.request(ctx, "Load", func() { r, s = b.server.load(keys, leases) }); err != nil {
		return nil, nil, err
	}
	return r, s, nil
}

// Swap carries each swap out by itself.
func (b *Backend) Swap(ctx context.Context, swaps []cas.Swap) ([]cas.Swapped, error) {
	done := make([]cas.Swapped, len(swaps))
	if slices.ContainsFunc(swaps, func(w cas.Swap) bool { return b.tooLarge(&w) || w.Tokens > cas.TokensPerSwap }) {
		return nil, &store.Error{Op: "Swap", Err: errLarge}
	}
	if err := b.request(ctx, "Swap", func() {
		for i, w := range swaps {
			done[i] = b.server.swap(w)
		}
	}); err != nil {
		return nil, err
	}
	return done, nil
}

// tooLarge reports whether a swap exceeds the limits of a server, or has two letters to one instance.
func (b *Backend) tooLarge(w *cas.Swap) bool {
	mail, to, most := 0, map[string]bool{}, b.Limits()
	for _, l := range w.Letters {
		if mail += len(l.Body); to[l.To] {
			return true
		}
		to[l.To] = true
	}
	return len(w.Living) > most.Living || len(w.Letters) > most.Letters || len(w.Data) > most.Record || mail > most.Mail
}

// Limits are those of the server.
func (b *Backend) Limits() cas.Limits { return b.server.Limits }

// Post delivers letters.
func (b *Backend) Post(ctx context.Context, letters []cas.Letter) error {
	letters = slices.Clone(letters)
	return b.request(ctx, "Post", func() { b.server.post(letters) })
}

// Scan reads a page of records.
func (b *Backend) Scan(ctx context.Context, prefix, after string, limit int) ([]cas.Record, error) {
	var found []cas.Record
	if err := b.request(ctx, "Scan", func() { found = b.server.scan(prefix, after, limit) }); err != nil {
		return nil, err
	}
	return found, nil
}

// OpenLeases opens or extends leases.
func (b *Backend) OpenLeases(ctx context.Context, leases []cas.NewLease) (store.History, error) {
	leases = slices.Clone(leases)
	var history store.History
	if err := b.request(ctx, "OpenLeases", func() { history = b.server.open(leases) }); err != nil {
		return store.History{}, err
	}
	return history, nil
}

// Renew extends leases.
func (b *Backend) Renew(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, store.History, error) {
	leases = slices.Clone(leases)
	var renewed []store.LeaseID
	var history store.History
	if err := b.request(ctx, "Renew", func() { renewed, history = b.server.renew(leases) }); err != nil {
		return nil, store.History{}, err
	}
	return renewed, history, nil
}

// Revoke ends leases.
func (b *Backend) Revoke(ctx context.Context, leases []store.LeaseID) error {
	leases = slices.Clone(leases)
	return b.request(ctx, "Revoke", func() { b.server.revoke(leases) })
}

// Opened lists an instance's living leases.
func (b *Backend) Opened(ctx context.Context, instance string) ([]store.LeaseID, error) {
	var found []store.LeaseID
	if err := b.request(ctx, "Opened", func() { found = b.server.opened(instance) }); err != nil {
		return nil, err
	}
	return found, nil
}
