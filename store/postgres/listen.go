package postgres

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/store"
)

// Listen says whether the store uses notifications. See [Config].
type Listen string

const (
	// ListenAuto listens while notifications are needed (see [Store.Listen]), and polls behind a pooler.
	ListenAuto Listen = "auto"
	// ListenAlways listens all the time. If it cannot, the store is not ready.
	ListenAlways Listen = "always"
	// ListenNever is for a pooler in transaction mode, where a session keeps nothing.
	ListenNever Listen = "never"
)

const (
	// helloLimit is how long the listener waits for its own notification. After each helloAgain it sends another one, because the first can be
	// lost with the connection that it was sent on. Not sooner: it wakes all listeners of the database, and a whole fleet may come back together.
	helloLimit = 3 * time.Second
	helloAgain = time.Second
	// goodConnection is how long a connection must last, so that a server which ends all of them is not asked for many.
	goodConnection = time.Second
	// listenerAlive is how often a silent connection is checked.
	listenerAlive = 30 * time.Second
	// keeperAlive is how often it is while keys are kept here, because a recall must not be lost for long.
	keeperAlive = time.Second
	// listenWait is how long an ask waits for the listener. After that, checks find the grant.
	listenWait = time.Second
)

var (
	errNotHeard = errors.New("LISTEN does not work: behind a transaction pooler set LOCKSIDECAR_POSTGRES_LISTEN_URL, which leads past it, " +
		"or LOCKSIDECAR_POSTGRES_LISTEN=never")
	errNotHeardThere = errors.New("notifications sent through LOCKSIDECAR_STORE_URL do not arrive at LOCKSIDECAR_POSTGRES_LISTEN_URL: " +
		"that URL must not lead through a transaction pooler")
	errListenOff = errors.New("switched off")
	errLeft      = errors.New("the store has another server by now")
)

// sqlListenAsk checks whether the server answers. The statement is empty.
var sqlListenAsk = statement{name: "listen", sql: strings.TrimSpace(mark + "listen" + markEnd)}

// listener receives notifications of other instances on its own connection, while they are needed. It first sends one to itself,
// which shows that they arrive. A notification of a moment in which it did not listen is lost, so each beginning and each end of
// the listening is followed by news of EveryWait. The order matters: LISTEN is committed, then all is looked at.
type listener struct {
	s       *Store
	channel string
	alive   time.Duration // see listenerAlive
	wait    time.Duration // see listenWait
	pauses  pauses
	hearing atomic.Bool
	wake    chan struct{}

	mu  sync.Mutex
	on  bool
	off context.CancelCauseFunc // ends the listening that is under way
	// keeping: keys are kept here. hurry ends a silence that began before that, so that the connection is checked. It can be nil.
	keeping bool
	hurry   context.CancelFunc
	// tried is closed by letGo when LISTEN was committed, or has failed, after the listener was switched on.
	tried chan struct{}
	letGo func()
}

func newListener(s *Store) *listener {
	id := s.config.Identity
	e := &listener{s: s, channel: channelOf(id.Namespace, id.Instance), alive: listenerAlive, wait: listenWait, pauses: pauses{firstPause, longPause}, wake: make(chan struct{}, 1)}
	e.turn(s.config.Listen == ListenAlways)
	return e
}

func (e *listener) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Listen says whether notifications are needed.
func (s *Store) Listen(on bool) { s.listener.turn(on || s.config.Listen == ListenAlways) }

// Keeping says whether keys are kept here: see [store.Keeper].
func (s *Store) Keeping(on bool) {
	e := s.listener
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keeping = on; on && e.hurry != nil {
		e.hurry()
	}
}

// silence is the context of a wait for a notification. It ends when the connection must be checked.
func (e *listener) silence(ctx context.Context) (context.Context, context.CancelFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	limit := e.alive
	switch {
	case !e.hearing.Load():
		e.hurry = nil
		return context.WithTimeout(ctx, helloAgain)
	case e.keeping:
		limit = min(limit, keeperAlive)
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	e.hurry = cancel
	return waiting, cancel
}

func (e *listener) turn(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.on == on {
		return
	}
	e.on = on
	if on {
		tried := make(chan struct{})
		e.tried, e.letGo = tried, sync.OnceFunc(func() { close(tried) })
	} else if e.off != nil {
		e.off(errListenOff)
	}
	e.poke()
}

// leave ends the connection to a server that the store has left, because that server may still run and
// answer. A listener with its own URL compares the servers itself: see ask.
func (e *listener) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.off != nil && e.s.direct == nil {
		e.off(errLeft)
	}
}

// ready returns when the listener listens or cannot, or after a limit. From then on, each news arrives, or
// news of EveryWait follows.
func (e *listener) ready(ctx context.Context) {
	e.mu.Lock()
	on, tried := e.on, e.tried
	e.mu.Unlock()
	if !on || !e.s.listens() {
		return
	}
	select {
	case <-tried:
		return
	default:
	}
	timer := time.NewTimer(e.wait)
	defer timer.Stop()
	select {
	case <-tried:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// pauses are the shortest and the longest pause between two connections.
type pauses struct{ first, longest time.Duration }

// after is the pause after a connection that has lasted so long. A good one is followed at once: while the listener pauses, no key is kept, and
// hand-offs are found only by polls. last is the pause before that connection.
func (p pauses) after(last time.Duration, heard bool, lasted time.Duration) time.Duration {
	if heard && lasted >= goodConnection {
		return p.first
	}
	return min(max(2*last, p.first), p.longest)
}

// run listens while notifications are needed, until ctx ends. It logs each new error.
func (e *listener) run(ctx context.Context) {
	pause, said := time.Duration(0), ""
	for ctx.Err() == nil {
		select {
		case <-e.wake: // begin sees what this tells
		default:
		}
		listening, off, tried := e.begin(ctx)
		if listening == nil {
			select {
			case <-ctx.Done():
			case <-e.wake:
			}
			continue
		}
		began := time.Now()
		err := e.listen(listening, tried)
		tried()
		switchedOff := errors.Is(context.Cause(listening), errListenOff)
		off(nil)
		heard := e.hearing.Swap(false)
		if heard {
			e.s.news(store.EveryWait) // polls from now on
		}
		if switchedOff || ctx.Err() != nil {
			continue
		}
		if pause = e.pauses.after(pause, heard, time.Since(began)); pause == e.pauses.first {
			said = ""
		}
		level := slog.LevelDebug
		if kind := kindOf(err); kind != said {
			level, said = slog.LevelWarn, kind
		}
		e.s.log.Log(ctx, level, "notifications of other instances do not arrive, trying again", "error", err)
		select {
		case <-ctx.Done():
		case <-e.wake: // the store is ready again, for instance
		case <-time.After(pause/2 + rand.N(pause)): //nolint:gosec // a whole fleet may have been refused at once
		}
	}
}

// begin makes the context of one connection, or returns nil. tried ends the wait of ready.
func (e *listener) begin(ctx context.Context) (listening context.Context, off context.CancelCauseFunc, tried func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.on || !e.s.listens() || !e.s.state.Load().usable {
		return nil, nil, nil
	}
	listening, e.off = context.WithCancelCause(ctx)
	return listening, e.off, e.letGo
}

// listen listens on a new connection until the connection or ctx ends.
func (e *listener) listen(ctx context.Context, tried func()) error {
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	tried()
	hello := "hello-" + uuid.NewString()
	began := time.Now()
	e.s.notifier.send(e.channel, hello)
	for {
		waiting, cancel := e.silence(ctx)
		n, err := conn.WaitForNotification(waiting)
		silent := waiting.Err() != nil
		cancel()
		switch {
		case err == nil:
			e.hear(n.Payload, hello)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !silent:
			return err
		case !e.hearing.Load() && time.Since(began) >= helloLimit:
			return e.notHeard()
		case !e.hearing.Load():
			e.s.notifier.send(e.channel, hello)
		default:
			if err := e.ask(ctx, conn); err != nil {
				return err
			}
		}
	}
}

// connect makes a connection that listens. LISTEN is committed before it returns.
func (e *listener) connect(ctx context.Context) (*pgx.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, e.s.config.Timeout)
	defer cancel()
	server, setUp := e.s.server, e.s.setUp
	if e.s.direct != nil {
		server, setUp = e.s.direct, e.greet
	}
	config, err := server.now(limited)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(limited, config)
	if err != nil {
		return nil, err
	}
	if err := setUp(limited, conn); err != nil {
		_ = conn.Close(limited)
		return nil, err
	}
	listen := statement{name: "listen", sql: mark + "listen" + markEnd + "LISTEN " + e.channel}
	err = e.s.measured(limited, listen, func(sql string) error { _, err := conn.Exec(limited, sql); return err })
	if err != nil {
		_ = conn.Close(limited)
		return nil, err
	}
	return conn, nil
}

// ask checks that the connection still leads to the store's server.
func (e *listener) ask(ctx context.Context, conn *pgx.Conn) error {
	limited, cancel := context.WithTimeout(ctx, e.s.config.Timeout)
	defer cancel()
	if e.s.direct != nil {
		_, err := e.compare(limited, conn)
		return err
	}
	return e.s.measured(limited, sqlListenAsk, func(sql string) error { _, err := conn.Exec(limited, sql); return err })
}

func (e *listener) notHeard() error {
	if e.s.direct != nil {
		return errNotHeardThere
	}
	return errNotHeard
}

// hear handles a payload. Any database user can have sent it. So a hint only causes a check, events count
// only for watched keys, and a grant must contain its whole id.
func (e *listener) hear(payload, hello string) {
	for word := range strings.SplitSeq(payload, " ") {
		switch word {
		case hello:
			if e.hearing.Swap(true) {
				break // another hello has come before
			}
			e.s.log.Debug("notifications of other instances arrive")
			e.s.news(store.EveryWait) // earlier ones may have been missed
		case signalsWord:
			e.s.news(store.News{Signals: true})
		default:
			e.pass(word)
		}
	}
}

func (e *listener) pass(word string) {
	if event, ok := eventOf(word); ok {
		if e.s.watches.has(event.Key) {
			e.s.news(store.News{Event: &event})
		}
		return
	}
	if attempt, ok := hintedOf(word); ok {
		e.s.news(store.News{Attempt: store.Attempt{ID: attempt}})
	}
	if key, ok := recalledOf(word); ok {
		e.s.news(store.News{Attempt: store.Attempt{Key: key}, Recall: true})
	}
	if news, ok := e.s.grantOf(word); ok {
		e.s.news(news)
	}
}
