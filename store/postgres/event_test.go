package postgres

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store"
)

func TestEventsAsText(t *testing.T) {
	t.Parallel()
	reason, empty := `a "reason" of two words`, ""
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000, time.UTC)
	for _, e := range []store.Event{
		{Kind: store.EventAcquired, Key: "k", Token: 1},
		{Kind: store.EventExpired, Key: " \"\\\n", Token: 1 << 53},
		{Kind: store.EventReleased, Key: "ü", Token: 2, Outcome: store.Success, Result: []byte(` { "a" : "<é>" } `)},
		{Kind: store.EventReleased, Key: "k", Token: 2, Outcome: store.Failure},
		{Kind: store.EventStopping, Key: "k", Token: 3, Stopping: &store.Stopping{At: at}},
		{Kind: store.EventStopping, Key: "k", Token: 3, Stopping: &store.Stopping{At: at, Reason: &reason}},
		{Kind: store.EventStopping, Key: "k", Token: 3, Stopping: &store.Stopping{At: at, Reason: &empty}},
	} {
		word := wordOf(e)
		if strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("%q is not a single word of ASCII", word)
		}
		got, ok := eventOf(word)
		if !ok || !reflect.DeepEqual(got, e) {
			t.Errorf("%+v became %+v (%t)", e, got, ok)
		}
	}
}

// A payload that is too long makes the server fail the whole statement.
func TestEventsFit(t *testing.T) {
	t.Parallel()
	const longest = 512
	for _, key := range []string{strings.Repeat(`"`, longest), strings.Repeat("\u0001", longest), strings.Repeat("\U0010FFFF", longest/4)} {
		for size, whole := range map[int]bool{4 << 10: true, 6 << 10: false, 1 << 20: false} {
			text := `"` + strings.Repeat("x", size-2) + `"`
			reason := strings.Repeat("\u0001", size)
			for _, e := range []store.Event{
				{Kind: store.EventReleased, Key: key, Token: 1 << 62, Outcome: store.Success, Result: []byte(text)},
				{Kind: store.EventStopping, Key: key, Token: 1 << 62, Stopping: &store.Stopping{Reason: &reason, At: time.Now()}},
			} {
				word := wordOf(e)
				got, ok := eventOf(word)
				if !ok || len(word) > maxPayload || got.Key != key || got.Token != e.Token || got.Outcome != e.Outcome {
					t.Fatalf("%d bytes: %+v (%t)", len(word), got, ok)
				}
				if kept := got.Result != nil || got.Stopping != nil && got.Stopping.Reason != nil; kept != whole {
					t.Errorf("complete with %d bytes: %t", size, kept)
				}
			}
		}
	}
}

func TestInvalidEvents(t *testing.T) {
	t.Parallel()
	good := wordOf(store.Event{Kind: store.EventReleased, Key: "k", Token: 1, Result: []byte("{}")})
	if _, ok := eventOf(good); !ok {
		t.Fatal(good)
	}
	for _, c := range [][2]string{
		{"event:", "evil:"},
		{"released", "eaten"},
		{"released", "stopping"},
		{`"token":1`, `"token":0`},
		{`"token":1`, `"token":1e99`},
		{`"token":1`, `"token":1,"outcome":"maybe"`},
		{`"token":1`, `"token":1,"stopping":{"at":"2026-01-02T03:04:05Z"}`},
		{`"aw=="`, `""`},
		{`"aw=="`, `"not base64"`},
		{`"aw=="`, `"/w=="`}, // not UTF-8
		{`"e30="`, `"ew=="`}, // not JSON
		{"}", ""},
	} {
		word := strings.Replace(good, c[0], c[1], 1)
		if e, ok := eventOf(word); ok {
			t.Errorf("%s was read as the event %+v", word, e)
		}
	}
}

// FuzzEventOf: an event that was read from text can be written as text and read again, unchanged.
func FuzzEventOf(f *testing.F) {
	reason := "why"
	f.Add(wordOf(store.Event{Kind: store.EventReleased, Key: "k", Token: 1, Outcome: store.Success, Result: []byte(`{"a":1}`)}))
	f.Add(wordOf(store.Event{Kind: store.EventStopping, Key: "k", Token: 1, Stopping: &store.Stopping{Reason: &reason, At: time.Now()}}))
	f.Fuzz(func(t *testing.T, word string) {
		e, ok := eventOf(word)
		if !ok || len(word) > maxPayload {
			return
		}
		again, ok := eventOf(wordOf(e))
		if e.Stopping != nil && again.Stopping != nil && e.Stopping.At.Equal(again.Stopping.At) {
			e.Stopping.At = again.Stopping.At // the time zone does not matter
		}
		if !ok || !reflect.DeepEqual(again, e) {
			t.Errorf("%+v became %+v (%t)", e, again, ok)
		}
	})
}

// FuzzHear: arbitrary payloads cause hints and events of watched keys, but not a grant.
func FuzzHear(f *testing.F) {
	const hello, watched = "hello-1", "k"
	event := wordOf(store.Event{Kind: store.EventExpired, Key: watched, Token: 1})
	for _, seed := range []string{
		"", hello, signalsWord, event, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6 signals  " + event, "00000000-0000-0000-0000-000000000000",
		"urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6", strings.Replace(event, `"aw=="`, `"bw=="`, 1),
	} {
		f.Add(seed)
	}
	space, err := NewSpace(Config{URL: "postgres://nobody@localhost/nothing"})
	if err != nil {
		f.Fatal(err)
	}
	s := space.open(store.Identity{Namespace: "n", Instance: "i"})
	s.watches.add([]string{watched}, store.LeaseID{1})
	var heard []store.News
	s.news = func(n store.News) { heard = append(heard, n) }
	f.Fuzz(func(t *testing.T, payload string) {
		heard = nil
		s.listener.hear(payload, hello)
		for _, n := range heard {
			hint := store.News{Attempt: store.Attempt{ID: n.ID}, Missed: n.Missed, Signals: n.Signals, Event: n.Event}
			if !reflect.DeepEqual(n, hint) || n.Event != nil && (n.Event.Key != watched || n.Signals || n.ID != store.AttemptID{}) {
				t.Fatalf("%q was received as %+v", payload, n)
			}
			if n.Missed && !strings.Contains(payload, hello) {
				t.Fatalf("%q causes a check of everything", payload)
			}
		}
	})
}

// During an outage of the database, a bounded number of events is kept in memory, the latest ones.
func TestEventsThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	space, err := NewSpace(Config{URL: "postgres://nobody@localhost/nothing"})
	if err != nil {
		t.Fatal(err)
	}
	s := space.open(store.Identity{Namespace: "n", Instance: "i"})
	m := s.notifier
	m.speaking = make(chan struct{}) // the instance waits for the database
	for n := range eventsMax + 10 {
		m.event(s, "n", store.Event{Kind: store.EventAcquired, Key: fmt.Sprint("k", n%3), Token: int64(n + 1)})
	}
	var tokens []int64
	for {
		_, events := m.take()
		if len(events) == 0 {
			break
		}
		if len(events) > eventsAtOnce {
			t.Fatalf("%d events in one statement", len(events))
		}
		for _, a := range events {
			e, _ := eventOf(a.word)
			tokens = append(tokens, e.Token)
		}
	}
	if len(tokens) != eventsMax || tokens[0] != 11 || tokens[len(tokens)-1] != eventsMax+10 {
		t.Errorf("%d events, from %d on, want the last %d", len(tokens), tokens[0], eventsMax)
	}
}
