package cas

import (
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

// note is one piece of news in a letter. A note of a waiter without an Outcome asks to check the waiter.
type note struct {
	ID       store.AttemptID `cbor:"1,keyasint,omitempty"`
	Lease    store.LeaseID   `cbor:"2,keyasint,omitempty"`
	Outcome  store.Outcome   `cbor:"3,keyasint,omitempty"`
	Token    int64           `cbor:"4,keyasint,omitempty"` // provisional tokens are offsets, as in records
	Acquired time.Time       `cbor:"5,keyasint,omitempty"`
	Slot     int             `cbor:"6,keyasint,omitempty"`
	Expires  time.Duration   `cbor:"7,keyasint,omitempty"`
	Result   []byte          `cbor:"8,keyasint,omitempty"`
	HandedBy string          `cbor:"9,keyasint,omitempty"`
	Cohort   []store.HalfID  `cbor:"10,keyasint,omitempty"`
	Signals  bool            `cbor:"11,keyasint,omitempty"`
	Event    *store.Event    `cbor:"12,keyasint,omitempty"`
	// Recall: the key is wanted elsewhere. Nothing else is set.
	Recall bool `cbor:"15,keyasint,omitempty"`
	// Way above zero: the sender asks for way for so long, because its swaps have lost so often. Nothing else is set.
	Way  time.Duration `cbor:"13,keyasint,omitempty"`
	Lost int           `cbor:"14,keyasint,omitempty"`
}

// maxNotes limits the notes of one letter. With the greatest result in each, it has 200 kB, which is below [LeastMail].
const maxNotes = 48

// mail is what a turn tells one other instance.
type mail struct {
	to    string
	notes []note
}

// letters returns what a turn tells other instances.
func (t *turn) letters() (letters []mail) {
	if len(t.op.News) == 0 {
		return nil
	}
	notes := map[string][]note{}
	for i := range t.op.News {
		if n := &t.op.News[i]; n.To.Name != t.s.me.Name {
			notes[n.To.Name] = append(notes[n.To.Name], t.note(&n.News))
		}
	}
	for _, to := range slices.Sorted(maps.Keys(notes)) {
		for some := range slices.Chunk(notes[to], maxNotes) {
			letters = append(letters, mail{to, some})
		}
	}
	return letters
}

// writes reports whether an instance already gets a letter with this swap, or with a further one.
func (t *turn) writes(letters []Letter, to string) bool {
	return slices.ContainsFunc(letters, func(l Letter) bool { return l.To == to }) ||
		slices.ContainsFunc(t.unsent, func(m mail) bool { return m.to == to })
}

// post returns the jobs that send the letters which did not go with a swap. It has reserved the tokens from base on.
func (t *turn) post(base int64) []*job {
	if len(t.unsent) == 0 {
		return nil
	}
	for _, m := range t.unsent {
		for i := range m.notes {
			m.notes[i].Token = absolute(m.notes[i].Token, base)
			if e := m.notes[i].Event; e != nil {
				e.Token = absolute(e.Token, base)
			}
		}
	}
	return []*job{{key: t.job.key, name: t.job.name, bump: true, mail: t.unsent}}
}

func (t *turn) note(n *store.News) note {
	a := &n.Answer
	if n.Event != nil {
		event := *n.Event
		event.Key, event.Token = "", offset(event.Token) // the letter names the key
		return note{Event: &event}
	}
	if n.Recall {
		return note{Recall: true}
	}
	if a.Outcome == store.Granted && t.timed(n.ID) {
		// A letter may be late. Only a read tells how long this lock still lasts.
		return note{ID: n.ID, Lease: n.Lease}
	}
	return note{
		ID: n.ID, Lease: n.Lease, Outcome: a.Outcome, Token: offset(a.Token), Acquired: a.AcquiredAt.UTC(), Slot: a.Slot,
		Expires: a.ExpiresIn, Result: a.Result, HandedBy: a.HandedBy, Cohort: a.Cohort, Signals: n.Signals,
	}
}

// timed reports whether a grant ends without its session: a bind:ttl lock, or one with a MinHold.
func (t *turn) timed(id store.AttemptID) bool {
	if h := &t.next.Holder; h.Attempt == id {
		return h.TTL > 0 || h.MinHold > 0
	}
	for i := range t.next.Shares {
		if h := &t.next.Shares[i]; h.Attempt == id {
			return h.TTL > 0 || h.MinHold > 0
		}
	}
	return true
}

// receive tells the news of a letter.
func (s *Store) receive(l Letter) {
	s.cache.Remove(l.Key)
	var notes []note
	name, mine := s.name(l.Key)
	if err := decoding.Unmarshal(l.Body, &notes); err != nil || !mine {
		s.log.Warn("a letter cannot be read; each waiter is checked instead", "key", l.Key, "error", err)
		s.lettersLost()
		return
	}
	if len(notes) == 1 && notes[0].Way > 0 {
		s.givesWay(name, &notes[0])
		return
	}
	s.wereTold(name, notes)
	for i := range notes {
		n := &notes[i]
		if n.Event != nil {
			n.Event.Key, n.Event.Token = name, absolute(n.Event.Token, l.Base)
			s.tell(name, store.News{Event: n.Event})
			continue
		}
		news := store.News{Signals: n.Signals}
		switch {
		case n.Recall:
			news = store.News{Attempt: store.Attempt{Key: name}, Recall: true}
		case !n.Signals:
			news = store.News{Attempt: store.Attempt{Key: name, ID: n.ID}, Lease: n.Lease, Answer: store.Answer{
				Outcome: n.Outcome, Token: absolute(n.Token, l.Base), AcquiredAt: n.Acquired, Slot: n.Slot,
				ExpiresIn: n.Expires, Result: n.Result, HandedBy: n.HandedBy, Cohort: n.Cohort,
			}}
		}
		s.tell(name, news)
	}
}

// tell passes news on about a key. Signals are remembered until they are read.
func (s *Store) tell(name string, n store.News) {
	if n.Signals {
		s.mu.Lock()
		s.signalled[name] = struct{}{}
		s.mu.Unlock()
	}
	s.report(n)
}

// lettersLost is called if letters may have been lost.
func (s *Store) lettersLost() {
	s.everyKey()
	s.report(store.EveryWait)
}

func (s *Store) report(n store.News) {
	if s.status.Load() == started {
		s.news(n)
	}
}
