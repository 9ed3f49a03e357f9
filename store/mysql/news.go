package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/store/cas"
)

const lettersAtOnce = 500

// An instance needs no letters, or it needs them now and then, or soon: see [Backend.Expect].
const (
	needNothing int32 = iota
	needSeldom
	needRecalls // soon, but not at the price of polls
	needOften
)

// naps is how long an instance sleeps at a time: often while somebody waits here or keys are kept, seldom while only a lease is open. Each
// end of a sleep shows that the connection works.
type naps struct{ often, seldom time.Duration }

var usualNaps = naps{often: 2 * time.Second, seldom: 20 * time.Second} //nolint:gochecknoglobals // a constant

const (
	// oversleep is how much later than expected the answer to a sleep comes at most. After that the connection counts as broken.
	oversleep = 2 * time.Second
	// restless is for how long sleeps are short after the last wait, because another one may follow.
	restless = 10 * time.Second
	// wakeWithin is how soon a sleep begins that was sent, and how soon the instance wakes itself. If it takes longer, the instance does not
	// rely on being woken.
	wakeWithin = time.Second
	// lookLimit limits a look during a sleep. If it takes longer, the instance does not rely on hearing letters.
	lookLimit = time.Second
	// mostRefused is how often in a row a sleep ends before it began, at most.
	mostRefused = 5
	// missedAfter: a letter that was written so long before a sleep ended by itself should have ended it.
	missedAfter = 250 * time.Millisecond
)

const (
	// pollLeast and pollOften limit the time between two looks into the mailbox while somebody waits here. A letter that took t to come is seen
	// t/pollShare later: so a short wait costs few looks, and so does a long one. pollSeldom is for an instance that only has a lease.
	pollLeast, pollOften = 2 * time.Millisecond, 20 * time.Millisecond
	pollShare            = 8
	pollSeldom           = time.Second
	// lookWithin is how long ago the last look is at most, or the instance does not rely on hearing letters. A new try to sleep takes less.
	lookWithin = time.Second
	// An instance that cannot be woken polls for pollFirst before it tries again, then twice as long, up to pollMost. If it missed a letter, it
	// begins with pollMissed, because that happens only now and then.
	pollFirst, pollMissed, pollMost = time.Second, time.Minute, 10 * time.Minute
)

var (
	errPooler   = errors.New("a pooler or a proxy is between this sidecar and the database, and so the number of its session is not the server's")
	errBedTaken = errors.New("another session has the lock of this sidecar's sleep")
	errNoSleep  = errors.New("the server does not let this sidecar sleep")
	errGone     = errors.New("the session in which this sidecar sleeps has ended")
	errMissed   = errors.New("a letter came, and its sender did not wake this sidecar: has it another user of the database?")
)

// Expect implements [cas.Expecter].
func (b *Backend) Expect(waits, keeps, leases bool) {
	need := needNothing
	switch {
	case waits:
		need = needOften
	case keeps:
		need = needRecalls
	case leases:
		need = needSeldom
	}
	if b.need.Swap(need) != need {
		select {
		case b.expected <- struct{}{}:
		default:
		}
	}
}

// Hears implements [cas.Backend]. An instance that polls does not do so often only for recalls.
func (b *Backend) Hears() bool {
	need, w := b.need.Load(), b.way.now()
	return (need == needOften || need == needRecalls && w.state == "listening") && time.Now().Before(w.until)
}

// way is how an instance gets its letters now.
type way struct {
	state string    // off, connecting, listening or polling: see metrics.StoreState
	why   string    // it does not listen
	until time.Time // until when it relies on hearing letters soon
}

type currentWay struct {
	mu sync.Mutex
	is way
}

func (c *currentWay) now() way {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.is
	w.state = cmp.Or(w.state, "off")
	return w
}

func (c *currentWay) become(w way) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.is = w
}

// Details implements [store.Described].
func (b *Backend) Details() map[string]string {
	found := b.Readiness.Details()
	if found == nil {
		return nil
	}
	switch w := b.way.now(); w.state {
	case "listening":
		found["news"] = "pushed: whoever writes a letter wakes this sidecar by KILL QUERY"
	case "polling":
		found["news"] = "polled: " + w.why
	}
	return found
}

// listener gets this instance's letters. Its fields are of the goroutine that does so.
type listener struct {
	b       *Backend
	deliver func(cas.Letter)
	lost    func()

	last  time.Time // when the last successful look began since letters are expected; zero: none
	news  time.Time // when the last letter came, or somebody began to wait
	waits time.Time // when somebody waited last
	need  int32     // at the last look at it

	polls  time.Duration // for how long to poll the next time that it cannot listen
	reason string        // it polled last
}

// listen gets the letters while they are expected: it sleeps until it is woken, or polls for a while if that does not work.
func (b *Backend) listen(ctx context.Context, deliver func(cas.Letter), lost func()) {
	l := &listener{b: b, deliver: deliver, lost: lost, polls: pollFirst}
	for l.awaitNeed(ctx) {
		if b.Ready() != nil { // nothing can be sent
			l.b.way.become(way{})
			cas.Pause(ctx, cas.FirstPause)
			continue
		}
		began := time.Now()
		err := l.sleep(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if errors.Is(err, errMissed) {
			l.polls = max(l.polls, pollMissed)
		} else if time.Since(began) > 10*l.polls {
			l.polls = pollFirst
		}
		l.poll(ctx, err)
		l.polls = min(2*l.polls, pollMost)
	}
	b.way.become(way{})
}

// awaitNeed waits until letters are expected.
func (l *listener) awaitNeed(ctx context.Context) bool {
	for l.needs() == needNothing {
		l.last = time.Time{}
		l.b.way.become(way{})
		select {
		case <-ctx.Done():
			return false
		case <-l.b.expected:
		}
	}
	return ctx.Err() == nil
}

// needs notes what is needed now.
func (l *listener) needs() int32 {
	need := l.b.need.Load()
	if need == needOften {
		now := time.Now()
		if l.waits = now; l.need != needOften {
			l.news = now
		}
	}
	l.need = need
	return need
}

// nap is how long to sleep next; zero: no letters are expected.
func (l *listener) nap() time.Duration {
	switch need := l.needs(); {
	case need == needNothing:
		return 0
	case need >= needRecalls, time.Since(l.waits) < restless:
		return l.b.naps.often
	default:
		return l.b.naps.seldom
	}
}

// sleep tells how the instance is woken when there are letters. It returns nil if none are expected any more, and otherwise why
// it cannot rely on being woken.
func (l *listener) sleep(ctx context.Context) error {
	b := l.b
	b.way.become(way{state: "connecting", until: b.way.now().until}) // the last poll counts for a moment
	s, err := b.goToBed(ctx)
	if err != nil {
		return err
	}
	defer s.leave()
	var asleep, ended time.Time // the last sleep that ended by itself: a letter written between these times should have ended it
	proven, idle, refused, opened := false, 0, 0, 0
	for nap := l.nap(); nap > 0; nap = l.nap() {
		// First the sleep begins, and then the instance looks. So it has either seen a letter, or whoever has written it wakes it.
		if err := s.shut(ctx); err != nil {
			return err
		}
		s.begin(nap)
		began := time.Now()
		seen, err := l.lookAsleep(ctx, s)
		looked := time.Now()
		switch {
		case err != nil:
			return err
		case seen.first.After(asleep) && ended.Sub(seen.first) > missedAfter:
			return errMissed
		case !seen.asleep && (!proven || !s.woken): // a sleep that somebody has ended before the look saw it is none that was refused
			if refused++; refused > mostRefused {
				return errNoSleep
			}
			continue
		case !proven:
			b.way.become(way{state: "connecting", until: looked.Add(lookWithin)})
			if err := l.prove(ctx, s); err != nil {
				return err
			}
			proven = true
			l.listens()
			continue
		}
		l.hears(nap, looked)
		// The next wake is heeded after as much time as the look took, so that a busy server gets fewer looks, each for more letters.
		// A wake may be for a letter that is read already. If many bring nothing, they cost no more than polls.
		refused = 0
		if idle++; seen.letters > 0 {
			idle = 0
		}
		if !cas.Pause(ctx, min(max(looked.Sub(began), time.Duration(idle-2)*time.Millisecond), pollOften)) {
			return ctx.Err()
		}
		woken, err := l.awaitEnd(ctx, s, nap)
		if err != nil {
			return err
		}
		if asleep, ended = looked, looked; !woken {
			ended, idle = time.Now(), 0
		}
		// A pooler that was not noticed may take the lock from the connection for the mailbox again and again.
		if opened++; !s.open {
			opened = 0
		} else if opened > mostRefused {
			return errNoSleep
		}
	}
	return nil
}

// hears notes that a sleep of this length has begun.
func (l *listener) hears(nap time.Duration, looked time.Time) {
	w := way{state: "listening"}
	if nap == l.b.naps.often {
		w.until = looked.Add(nap + oversleep)
	}
	l.b.way.become(w)
}

// listens notes that the instance can be woken.
func (l *listener) listens() {
	if l.reason != "" {
		l.b.Log.Info("the database wakes this sidecar for its news again")
		l.reason = ""
	}
	l.b.way.become(way{state: "listening", until: l.b.way.now().until})
}

// lookAsleep looks into the mailbox until a look came after the sleep had begun, or the sleep has ended before a look saw it.
func (l *listener) lookAsleep(ctx context.Context, s *sleeper) (all look, err error) {
	sent := time.Now()
	for pause := time.Duration(0); ; pause = min(2*pause+100*time.Microsecond, pollOften) {
		found, err := l.look(ctx, l.b.own.mailbox, s)
		all.add(found)
		if err != nil {
			return all, err
		}
		l.b.steps.looked(found.asleep)
		switch {
		case found.asleep:
			return all, nil
		case time.Since(sent) > wakeWithin:
			return all, errNoSleep
		}
		select {
		case <-s.over:
			return all, s.err
		case <-ctx.Done():
			return all, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// prove lets the instance wake itself, as others will.
func (l *listener) prove(ctx context.Context, s *sleeper) error {
	_, _, err := l.b.request(ctx, l.b.main, "wake", false, true, func(p *packet) {
		p.to, p.proves = []string{l.b.instance}, true
	})
	if err != nil {
		return err
	}
	select {
	case <-s.over:
		if s.err != nil || !s.woken {
			return cmp.Or(s.err, errNoWake)
		}
		l.b.isProven(true)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wakeWithin):
		return errNoWake
	}
}

// awaitEnd waits for the end of a sleep. It ends a long one if letters are needed sooner.
func (l *listener) awaitEnd(ctx context.Context, s *sleeper, nap time.Duration) (woken bool, err error) {
	for {
		select {
		case <-s.over:
			return s.woken, s.err
		case <-ctx.Done():
			return false, ctx.Err()
		case <-l.b.expected:
			if l.needs() >= needRecalls && nap > l.b.naps.often {
				nap = 0 // once
				if err := l.b.wakeOne(ctx, l.b.instance); err != nil {
					return false, err
				}
			}
		}
	}
}

// poll tells how the instance looks for letters from time to time, because it cannot be woken.
func (l *listener) poll(ctx context.Context, why error) {
	reason := reasonOf(why)
	if l.reason != reason {
		l.b.Log.Info("the database cannot wake this sidecar for its news, so it looks for them", "why", harmless(why))
		l.reason = reason
	}
	l.b.isProven(false)
	l.b.way.become(way{state: "polling", why: reason})
	end := time.Now().Add(l.polls)
	var due time.Time // the next look; zero: none
	for failures := 0; ; {
		need := l.needs()
		if need == needNothing || failures == 0 && time.Now().After(end) {
			return
		}
		every := pollSeldom
		if need == needOften {
			every = min(max(pollLeast, time.Since(l.news)/pollShare), pollOften)
		}
		// Calls that wait come and go. Each change may bring the look forward, but none puts it off.
		if at := time.Now().Add(min(every<<min(failures, 6), max(every, cas.LongPause))); due.IsZero() || at.Before(due) {
			due = at
		}
		select {
		case <-ctx.Done():
			return
		case <-l.b.expected:
			continue
		case <-time.After(time.Until(due)):
		}
		due = time.Time{}
		began, pool := time.Now(), l.b.own.mailbox
		if failures%2 == 1 {
			pool = l.b.main // the server may have no room for one more connection
		}
		if _, err := l.look(ctx, pool, nil); err != nil {
			failures++
			continue
		}
		failures = 0
		l.b.way.become(way{state: "polling", why: reason, until: began.Add(lookWithin)})
	}
}

// reasonOf is why an instance polls, without hosts.
func reasonOf(err error) string {
	for _, known := range []error{errPooler, errBedTaken, errNoSleep, errNoWake, errMissed, errGone} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	if number(err) != 0 {
		return harmless(err)
	}
	return "the connection for it broke"
}

// look is what a look into the mailbox has found.
type look struct {
	letters int
	first   time.Time // when the first letter was written, or up to the time of the look later; zero: no letter
	asleep  bool      // the sleep had begun before
}

// add adds what a later look has found.
func (l *look) add(later look) {
	if l.letters == 0 {
		l.first = later.first
	}
	l.letters += later.letters
	l.asleep = later.asleep
}

// look deletes all letters and delivers them. InnoDB shows what is committed before the disk has it. The deletion
// comes later in its log, so when that is confirmed, a crash of the server cannot forget what a letter tells. s is the sleep that
// should have begun, or nil.
func (l *listener) look(ctx context.Context, pool *sql.DB, s *sleeper) (seen look, err error) {
	b, began := l.b, time.Now()
	for first := true; ; first = false {
		limited, cancel := ctx, context.CancelFunc(func() {})
		if s != nil {
			limited, cancel = context.WithTimeout(ctx, lookLimit)
		}
		found, _, err := b.request(limited, pool, "letters", false, true, func(p *packet) {
			if s != nil {
				p.ask("asleep", s.bed, s.lock())
			}
			p.ask("read_letters", b.instance, lettersAtOnce)
		})
		cancel()
		if err != nil {
			return seen, err
		}
		if s != nil {
			asleep, err := s.isAsleep(found[0])
			if err != nil {
				return seen, err
			}
			if found = found[1:]; first {
				seen.asleep = asleep
			}
		}
		read := time.Now()
		ids, letters, age, err := b.readLetters(found[0])
		if err != nil {
			return seen, err
		}
		if len(ids) > 0 {
			if err := b.deleteLetters(ctx, pool, ids); err != nil {
				l.lost() // they may be gone
				return seen, err
			}
			l.news = time.Now()
		}
		for _, letter := range letters {
			l.deliver(letter)
		}
		if seen.letters == 0 && len(ids) > 0 {
			seen.first = read.Add(-age)
		}
		seen.letters += len(ids)
		if len(ids) == lettersAtOnce {
			continue
		}
		if !l.last.IsZero() && began.Sub(l.last) > keepLetters/2 {
			l.lost() // the letters of a long outage may have been swept
		}
		l.last = began
		return seen, nil
	}
}

// readLetters reads the rows of letters, and how long ago the first one was written.
func (b *Backend) readLetters(rows [][][]byte) (ids []int64, letters []cas.Letter, age time.Duration, err error) {
	ids, letters = make([]int64, len(rows)), make([]cas.Letter, len(rows))
	for i, row := range rows {
		base, err := strconv.ParseInt(string(row[2]), 10, 64)
		if err != nil {
			return nil, nil, 0, errFormat
		}
		if ids[i], err = strconv.ParseInt(string(row[0]), 10, 64); err != nil {
			return nil, nil, 0, errFormat
		}
		micros, err := strconv.ParseInt(string(row[4]), 10, 64)
		if err != nil {
			return nil, nil, 0, errFormat
		}
		age = max(age, time.Duration(micros)*time.Microsecond)
		letters[i] = cas.Letter{To: b.instance, Key: string(row[1]), Base: base, Body: row[3]}
	}
	return ids, letters, age, nil
}

// deleteLetters is not repeated if the connection breaks: a second deletion may change nothing, and its commit then waits for no disk.
func (b *Backend) deleteLetters(ctx context.Context, pool *sql.DB, ids []int64) error {
	_, _, err := b.request(ctx, pool, "delete_letters", true, false, func(p *packet) { p.add("delete_letters", ids) })
	return err
}
