package postgres

import (
	"context"
	"sync"

	"github.com/locksidecar/locksidecar/store"
)

// Store is one instance's view of a [Space]. It has what nobody else may mix with its own: the identity, the keys that it watches, its
// late attempts and its recent keys. Whatever it asks the database, it asks by the space's connections.
type Store struct {
	*Space
	id store.Identity

	ear     *ear
	recent  recentKeys
	watches watches
	late    late
	again   nowAndThen // see againEach

	// life guards the following fields, which begin reads.
	life     sync.Mutex
	phase    phase
	news     func(store.News) // set before phaseStarted
	inFlight sync.WaitGroup   // operations
}

// phase is that of a view's life.
type phase uint8

const (
	phaseFresh phase = iota
	phaseStarted
	phaseStopped
)

var (
	_ store.Store    = (*Store)(nil)
	_ store.Tokens   = (*Store)(nil)
	_ store.Listener = (*Store)(nil)
	_ store.Keeper   = (*Store)(nil)
	_ store.Quieter  = (*Store)(nil)
)

// View makes the view of an instance.
func (s *Space) View(id store.Identity) store.Store { return s.open(id) }

func (s *Space) open(id store.Identity) *Store {
	view := &Store{Space: s, id: id, recent: newRecentKeys(), news: func(store.News) {}}
	view.ear = newEar(view)
	return view
}

// Traits says that without a listener, callers must poll for hand-offs of other instances, and recalls do not arrive.
func (s *Store) Traits() store.Traits {
	hears := s.ear.hearing.Load()
	return store.Traits{Polls: !hears, Hears: hears}
}

// Ready is nil if the last check reached the server.
func (s *Store) Ready() error {
	if err := s.alive(); err != nil {
		return err
	}
	why := s.state.Load().why
	if why == nil && s.config.Listen == ListenAlways && !s.readsOnly.Load() && !s.ear.hearing.Load() {
		return s.listener.notHeard()
	}
	return why
}

// Start makes operations possible as soon as the space has reached the server.
func (s *Store) Start(_ context.Context, news func(store.News)) error {
	s.life.Lock()
	defer s.life.Unlock()
	switch s.phase {
	case phaseStarted:
		return nil
	case phaseStopped:
		return errStopped
	case phaseFresh:
	}
	if news != nil {
		s.news = news
	}
	if err := s.views.Begin(s.id.Instance, s); err != nil {
		s.phase = phaseStopped
		return &store.Error{Op: "Start", Err: err}
	}
	s.phase = phaseStarted
	s.listener.join(s.ear)
	return nil
}

// Stop waits for operations in flight and for the notifications that they have caused, each at most for Timeout. Then nothing of this view is left
// in the space.
func (s *Store) Stop() {
	s.life.Lock()
	was := s.phase
	s.phase = phaseStopped
	s.life.Unlock()
	if was == phaseStarted {
		s.inFlight.Wait()
		s.unflushed.forget(s)
		s.listener.part(s.ear)
		silence, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		s.notifier.drain(silence)
		cancel()
		s.views.End(s.id.Instance, s)
	}
}

// alive is nil between Start and Stop.
func (s *Store) alive() error {
	s.life.Lock()
	defer s.life.Unlock()
	return s.phase.problem()
}

func (p phase) problem() error {
	switch p {
	case phaseFresh:
		return errNotStarted
	case phaseStopped:
		return errStopped
	case phaseStarted:
	}
	return nil
}

// admit begins an operation, which leave ends.
func (s *Store) admit() error {
	s.life.Lock()
	defer s.life.Unlock()
	if err := s.phase.problem(); err != nil {
		return err
	}
	s.inFlight.Add(1)
	return nil
}

func (s *Store) leave() { s.inFlight.Done() }

// report passes news on, unless the view has ended.
func (s *Store) report(n store.News) {
	s.life.Lock()
	news, problem := s.news, s.phase.problem()
	s.life.Unlock()
	if problem == nil {
		news(n)
	}
}
