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

// listener receives notifications of other instances on its own connection, while a view needs them. It first sends one to itself,
// which shows that they arrive. A notification of a moment in which it did not listen is lost, so for each view each beginning and each end of
// the listening is followed by news of EveryWait. The order matters: LISTEN is committed, then all is looked at.
type listener struct {
	s      *Space
	alive  time.Duration // see listenerAlive
	wait   time.Duration // see listenWait
	pauses pauses
	wake   chan struct{}

	// telling is held while views are told something, so that none is after its end.
	telling sync.Mutex

	mu sync.Mutex
	// ears are those of the views that run. The ears with on are to be listened for.
	ears map[*ear]struct{}
	off  context.CancelCauseFunc // ends the listening that is under way
	// ending: off was called, so the connection ends. attempts are the letGo of the ears for which it was made, or was to be tuned.
	ending   bool
	attempts []func()
	// hurry ends a silence, so that the connection is checked, or tuned. It can be nil.
	hurry context.CancelFunc
	// tuned are the ears for which the connection listens, by their channels. untuned: these are not just those that are on.
	tuned   map[string]*ear
	untuned bool
	// keepers is how many ears have keeping.
	keepers int
	// hello is what the listener sent to itself on this connection, to helloTo. heard: it has arrived.
	hello   string
	helloTo *ear
	helloAt time.Time
	heard   bool
}

// ear is a view's part of the listener.
type ear struct {
	view    *Store
	channel string
	hearing atomic.Bool

	// The listener's mutex guards the following fields.

	on bool
	// keeping: keys are kept here, so that a connection that breaks must be noticed soon.
	keeping bool
	// tried is closed by letGo when LISTEN was committed, or has failed, after the ear was switched on.
	tried chan struct{}
	letGo func()
}

func newListener(s *Space) *listener {
	return &listener{
		s: s, alive: listenerAlive, wait: listenWait, pauses: pauses{firstPause, longPause}, wake: make(chan struct{}, 1),
		ears: map[*ear]struct{}{}, tuned: map[string]*ear{},
	}
}

func newEar(view *Store) *ear {
	a := &ear{view: view, channel: channelOf(view.id.Namespace, view.id.Instance)}
	view.listener.turn(a, view.config.Listen == ListenAlways)
	return a
}

func (e *listener) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Listen says whether notifications are needed.
func (s *Store) Listen(on bool) { s.listener.turn(s.ear, on || s.config.Listen == ListenAlways) }

// Keeping says whether keys are kept here: see [store.Keeper].
func (s *Store) Keeping(on bool) {
	e := s.listener
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.keep(s.ear, on); on {
		e.hurryUp()
	}
}

// keep notes whether keys are kept here. The caller holds the mutex.
func (e *listener) keep(a *ear, on bool) {
	switch {
	case on && !a.keeping:
		e.keepers++
	case !on && a.keeping:
		e.keepers--
	}
	a.keeping = on
}

// hurryUp ends a silence. The caller holds the mutex.
func (e *listener) hurryUp() {
	if e.hurry != nil {
		e.hurry()
	}
}

// join adds the ear of a view that has started.
func (e *listener) join(a *ear) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.anyOn()
	e.ears[a] = struct{}{}
	e.changed(was)
}

// part removes the ear of a view that has ended. After that, it is told nothing.
func (e *listener) part(a *ear) {
	e.mu.Lock()
	was := e.anyOn()
	delete(e.ears, a)
	e.keep(a, false)
	a.hearing.Store(false)
	e.changed(was)
	e.mu.Unlock()
	e.telling.Lock()   // until what it is being told is over
	e.telling.Unlock() //nolint:staticcheck,gocritic // see above
}

func (e *listener) turn(a *ear, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a.on == on {
		return
	}
	was := e.anyOn()
	if a.on = on; on {
		tried := make(chan struct{})
		a.tried, a.letGo = tried, sync.OnceFunc(func() { close(tried) })
		if e.tuned[a.channel] == a && !e.ending { // it was switched off for a moment
			a.letGo()
		}
	} else if a.letGo != nil {
		a.letGo()
	}
	e.changed(was)
}

// changed lets the listener see which ears are on now. was: some were on before. Only the first one interrupts its pause after a failure. The
// caller holds the mutex.
func (e *listener) changed(was bool) {
	switch is := e.anyOn(); {
	case is && !was:
		e.poke()
	case was && !is:
		e.end(errListenOff)
	}
	if e.untuned = !e.isTuned(); e.untuned {
		e.hurryUp()
	}
}

// anyOn reports whether a view needs notifications. The caller holds the mutex.
func (e *listener) anyOn() bool {
	for a := range e.ears {
		if a.on {
			return true
		}
	}
	return false
}

// isTuned reports whether the connection listens for the ears that are on, and for no others. The caller holds the mutex.
func (e *listener) isTuned() bool {
	for a := range e.ears {
		if a.on && e.tuned[a.channel] != a {
			return false
		}
	}
	for _, a := range e.tuned {
		if !e.wants(a) {
			return false
		}
	}
	return true
}

// views is how many views run.
func (e *listener) views() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.ears)
}

func (e *listener) wants(a *ear) bool {
	_, runs := e.ears[a]
	return runs && a.on
}

// silence is the context of a wait for a notification. It ends when the connection must be checked or tuned. It is nil if the connection must
// be tuned now.
func (e *listener) silence(ctx context.Context) (context.Context, context.CancelFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.untuned {
		return nil, nil
	}
	limit := e.alive
	if !e.heard {
		limit = helloAgain
	} else if e.keepers > 0 {
		limit = min(limit, keeperAlive)
	}
	waiting, cancel := context.WithTimeout(ctx, limit)
	e.hurry = cancel
	return waiting, cancel
}

// leave ends the connection to a server that the store has left, because that server may still run and
// answer. A listener with its own URL compares the servers itself: see ask.
func (e *listener) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.s.direct == nil {
		e.end(errLeft)
	}
}

// end ends the listening that is under way. The caller holds the mutex.
func (e *listener) end(why error) {
	if e.off != nil {
		e.off(why)
		e.ending = true
	}
}

// ready returns when the listener listens for a view or cannot, or after a limit. From then on, each news arrives, or
// news of EveryWait follows.
func (e *listener) ready(ctx context.Context, a *ear) {
	e.mu.Lock()
	on, tried := a.on, a.tried
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

// run listens while a view needs notifications, until ctx ends. It logs each new error.
func (e *listener) run(ctx context.Context) {
	pause, said := time.Duration(0), ""
	for ctx.Err() == nil {
		select {
		case <-e.wake: // begin sees what this tells
		default:
		}
		listening, off := e.begin(ctx)
		if listening == nil {
			select {
			case <-ctx.Done():
			case <-e.wake:
			}
			continue
		}
		began := time.Now()
		err := e.listen(listening)
		switchedOff := errors.Is(context.Cause(listening), errListenOff)
		off(nil)
		heard := e.deafen() // they poll from now on
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

// begin makes the context of one connection, or returns nil.
func (e *listener) begin(ctx context.Context) (listening context.Context, off context.CancelCauseFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.anyOn() || !e.s.listens() || !e.s.state.Load().usable {
		return nil, nil
	}
	listening, e.off = context.WithCancelCause(ctx)
	e.ending = false
	for a := range e.ears {
		if a.on {
			e.attempts = append(e.attempts, a.letGo)
		}
	}
	return listening, e.off
}

// deafen ends the hearing of all views, with the connection, and the waits of ready for it. An ear that was switched on meanwhile waits for the next
// connection. It reports whether notifications have arrived.
func (e *listener) deafen() (heard bool) {
	e.mu.Lock()
	heard, e.heard, e.helloTo, e.hurry = e.heard, false, nil, nil
	var told []*ear
	for _, a := range e.tuned {
		if a.hearing.Swap(false) {
			told = append(told, a)
		}
	}
	clear(e.tuned)
	e.untuned = !e.isTuned()
	for _, letGo := range e.attempts {
		letGo()
	}
	e.attempts = nil
	e.mu.Unlock()
	e.tellAll(told)
	return heard
}

// tellAll tells views that news may have been missed.
func (e *listener) tellAll(ears []*ear) {
	e.telling.Lock()
	defer e.telling.Unlock()
	for _, a := range ears {
		a.view.report(store.EveryWait)
	}
}

// listen listens on a new connection until the connection or ctx ends.
func (e *listener) listen(ctx context.Context) error {
	conn, err := e.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	e.hello = "hello-" + uuid.NewString()
	for began := time.Now(); ; {
		if err := e.tune(ctx, conn); err != nil {
			return err
		}
		e.greetSelf()
		waiting, cancel := e.silence(ctx)
		if waiting == nil {
			continue
		}
		n, err := conn.WaitForNotification(waiting)
		silent := waiting.Err() != nil
		cancel()
		switch {
		case err == nil:
			e.hear(n.Channel, n.Payload)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !silent:
			return err
		case !e.heard && time.Since(began) >= helloLimit:
			return e.notHeard()
		case !e.heard || e.mustTune():
		default:
			if err := e.ask(ctx, conn); err != nil {
				return err
			}
		}
	}
}

func (e *listener) mustTune() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.untuned
}

// greetSelf sends the hello, and again if it is late, or if the channel that it went to is no longer listened to.
func (e *listener) greetSelf() {
	e.mu.Lock()
	defer e.mu.Unlock()
	under := e.helloTo != nil && e.tuned[e.helloTo.channel] == e.helloTo && time.Since(e.helloAt) < helloAgain
	if e.heard || under {
		return
	}
	for channel, a := range e.tuned {
		e.helloTo, e.helloAt = a, time.Now()
		e.s.notifier.send(channel, e.hello)
		return
	}
}

// connect makes a connection.
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
	return conn, nil
}

// tune makes the connection listen for the ears that are on, and for no others. LISTEN is committed before it returns. An ear that is tuned when
// notifications are known to arrive hears from then on. One that the connection no longer listens for is told that it misses news.
func (e *listener) tune(ctx context.Context, conn *pgx.Conn) error {
	e.mu.Lock()
	if !e.untuned {
		e.mu.Unlock()
		return nil
	}
	var commands []string
	var begins, ends []*ear
	for channel, a := range e.tuned {
		if !e.wants(a) {
			ends, commands = append(ends, a), append(commands, "UNLISTEN "+channel)
		}
	}
	for a := range e.ears {
		if a.on && e.tuned[a.channel] != a {
			begins, commands = append(begins, a), append(commands, "LISTEN "+a.channel)
			e.attempts = append(e.attempts, a.letGo)
		}
	}
	e.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, e.s.config.Timeout)
	defer cancel()
	listen := statement{name: "listen", sql: mark + "listen" + markEnd + strings.Join(commands, ";")}
	if err := e.s.measured(limited, listen, func(sql string) error { _, err := conn.Exec(limited, sql); return err }); err != nil {
		return err
	}
	e.mu.Lock()
	if e.ending { // who was switched on since waits for the next connection
		e.mu.Unlock()
		return context.Cause(ctx)
	}
	var told []*ear
	for _, a := range ends {
		if delete(e.tuned, a.channel); a.hearing.Swap(false) {
			told = append(told, a)
		}
	}
	for _, a := range begins {
		e.tuned[a.channel] = a
		a.letGo()
	}
	told = append(told, e.hearAll()...)
	e.untuned, e.attempts = !e.isTuned(), nil
	e.mu.Unlock()
	e.tellAll(told)
	return nil
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
func (e *listener) hear(channel, payload string) {
	e.mu.Lock()
	a := e.tuned[channel]
	e.mu.Unlock()
	if a == nil {
		return
	}
	greeted := false
	e.telling.Lock()
	for word := range strings.SplitSeq(payload, " ") {
		switch word {
		case e.hello:
			greeted = true
		case signalsWord:
			a.view.report(store.News{Signals: true})
		default:
			a.view.pass(word)
		}
	}
	e.telling.Unlock()
	if greeted {
		e.hearsItself()
	}
}

// hearsItself notes that notifications arrive. Earlier ones may have been missed.
func (e *listener) hearsItself() {
	e.mu.Lock()
	var told []*ear
	if !e.heard { // otherwise another hello has come before
		e.heard = true
		told = e.hearAll()
		e.s.log.Debug("notifications of other instances arrive")
	}
	e.mu.Unlock()
	e.tellAll(told)
}

// hearAll lets the ears hear for which the connection listens, if notifications arrive. It returns those that did not before. One that is switched off
// now may be on again before the connection is tuned. The caller holds the mutex.
func (e *listener) hearAll() (begin []*ear) {
	for _, a := range e.tuned {
		if _, runs := e.ears[a]; runs && e.heard && !a.hearing.Swap(true) {
			begin = append(begin, a)
		}
	}
	return begin
}

func (s *Store) pass(word string) {
	if event, ok := eventOf(word); ok {
		if s.watches.has(event.Key) {
			s.report(store.News{Event: &event})
		}
		return
	}
	if attempt, ok := hintedOf(word); ok {
		s.report(store.News{Attempt: store.Attempt{ID: attempt}})
	}
	if key, ok := recalledOf(word); ok {
		s.report(store.News{Attempt: store.Attempt{Key: key}, Recall: true})
	}
	if news, ok := s.grantOf(word); ok {
		s.report(news)
	}
}
