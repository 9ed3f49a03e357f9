package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strconv"
	"time"
)

// sleeper is the session in which this instance sleeps. It has a lock by which others find it, and does nothing else than sleep, so a KILL QUERY
// can do no harm in it. Its session is never used for anything else: it ends with the sleeper.
type sleeper struct {
	b      *Backend
	conn   *sql.Conn
	bed    string // the lock by which others find it
	door   string // the lock for which it waits: the connection for the mailbox has it
	open   bool   // it may have no lock to wait for
	number int64  // of the session
	sleeps int64  // that have begun, or are about to

	cancel context.CancelFunc
	over   chan struct{} // closed at the end of the sleep; what follows is written before
	woken  bool          // somebody has ended it
	err    error         // the connection broke
}

// goToBed makes a sleeper.
func (b *Backend) goToBed(ctx context.Context) (*sleeper, error) {
	if err := b.Ready(); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	conn, err := b.own.sleep.Conn(limited)
	if err != nil {
		return nil, err
	}
	s := &sleeper{b: b, conn: conn, bed: b.bed(b.instance), open: true, cancel: func() {}, over: make(chan struct{})}
	close(s.over)
	if err := s.takeBed(limited); err != nil {
		s.discard()
		return nil, err
	}
	s.door = b.door(s.number)
	return s, nil
}

// takeBed takes the lock. If an earlier session of this instance still has it, for instance because its connection was cut, that one
// is ended.
func (s *sleeper) takeBed(ctx context.Context) error {
	p := &packet{}
	p.add("end_other")
	p.add("long_sleep")
	if _, err := exchange(ctx, s.conn, string(p.text)); err != nil && number(err) == 0 {
		return err
	}
	for wait := range 2 { // seconds
		p := &packet{}
		p.add("end_other")
		p.add("pin")
		p.add("take_bed", s.bed, wait)
		found, err := exchange(ctx, s.conn, string(p.text))
		if err != nil {
			return err
		}
		if len(found) != 1 || len(found[0]) != 1 || len(found[0][0]) != 2 {
			return errFormat
		}
		row := found[0][0]
		if s.number, err = strconv.ParseInt(string(row[1]), 10, 64); err != nil {
			return errFormat
		}
		switch {
		case uint32(s.number) != s.b.own.greeted.Load():
			return errPooler
		case string(row[0]) == "1":
			return nil
		case wait == 0:
			if err := s.b.endSleeper(ctx); err != nil && number(err) == 0 {
				return err
			}
		}
	}
	return errBedTaken
}

// endSleeper ends the session that has this instance's lock.
func (b *Backend) endSleeper(ctx context.Context) error {
	p := &packet{wakes: true}
	p.add("end_other")
	p.add("committed")
	p.add("leave_bed", b.bed(b.instance))
	_, _, err := b.send(ctx, b.main, "wake", p)
	return err
}

// door is the name of the lock for which a session waits. Each session has another one, because the server may still keep an earlier
// connection for the mailbox, with the lock that it got.
func (b *Backend) door(session int64) string {
	return b.bed(b.instance) + ".door." + strconv.FormatInt(session, 36)
}

// lock is that of the present sleep. It is never that of another one.
func (s *sleeper) lock() string { return s.bed + "." + strconv.FormatInt(s.sleeps, 36) }

// shut lets the connection for the mailbox have the lock for which the sleeper is to wait. If that connection breaks, the sleeper gets the
// lock, and hands it back here.
func (s *sleeper) shut(ctx context.Context) error {
	if !s.open {
		return nil
	}
	p := &packet{}
	p.add("open", s.door)
	for range tries {
		if _, err := exchange(ctx, s.conn, string(p.text)); err == nil {
			break
		} else if number(err) == 0 {
			return err
		} // a late wake, which finds no sleep, has hit this statement
	}
	found, _, err := s.b.request(ctx, s.b.own.mailbox, "letters", false, true, func(p *packet) { p.ask("shut", s.b.shut, s.door) })
	switch {
	case err != nil:
		return err
	case len(found[0]) != 1 || len(found[0][0]) != 2:
		return errFormat
	case string(found[0][0][1]) != "1":
		return errBedTaken
	}
	s.b.shut, s.open = s.door, false
	return nil
}

// begin begins to sleep. Only leave ends that, or the server.
func (s *sleeper) begin(nap time.Duration) {
	var ctx context.Context
	last := s.lock()
	s.sleeps++
	p := &packet{}
	p.add("sleep", last, s.lock(), s.door, int(nap/time.Second))
	s.over, s.woken = make(chan struct{}), false
	s.cancel()
	ctx, s.cancel = context.WithTimeout(context.Background(), nap+oversleep)
	go func() {
		defer close(s.over)
		s.b.steps.sleeps(ctx)
		found, err := exchange(ctx, s.conn, string(p.text))
		switch {
		case number(err) != 0: // KILL QUERY, or a limit of the server
			s.woken = true
		case err != nil:
			s.err = err
		case len(found) != 1 || len(found[0]) != 1 || len(found[0][0]) != 2:
			s.err = errFormat
		default:
			s.woken = found[0][0][1] == nil // MySQL says so
			s.open = string(found[0][0][1]) == "1"
		}
	}()
}

// isAsleep reads the answer to the question who has the two locks.
func (s *sleeper) isAsleep(rows [][][]byte) (bool, error) {
	if len(rows) != 1 || len(rows[0]) != 2 {
		return false, errFormat
	}
	is := func(column int) bool { return string(rows[0][column]) == strconv.FormatInt(s.number, 10) }
	switch {
	case is(0):
		return is(1), nil
	case rows[0][0] == nil:
		return false, errGone
	default:
		return false, errPooler
	}
}

// leave ends the session. The server notices as soon as the lock for which it waits is free, so at the end of a sidecar, or by itself, or it is
// told: see takeBed.
func (s *sleeper) leave() {
	s.cancel()
	<-s.over
	s.discard()
}

// discard closes the connection, so that nobody gets a session with the lock.
func (s *sleeper) discard() {
	_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
	if err := s.conn.Close(); err != nil && !errors.Is(err, sql.ErrConnDone) {
		s.b.Log.Debug("the end of a connection", "error", err)
	}
}
