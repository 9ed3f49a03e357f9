package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/internal/client"
)

const (
	// maxTopics limits the watched keys, maxEvents the events that are kept of each.
	maxTopics = 80
	maxEvents = 50
	// linger is how long a key that no page shows is watched on, so that a reload shows its past events.
	linger = 30 * time.Second
	// again is the pause before a key is watched again.
	again = time.Second
	// maxText limits the text of an event.
	maxText = 200
)

// topics are the watched keys. The one that was not shown for the longest time makes room for another.
type topics struct {
	c   *console
	ctx context.Context

	mu    sync.Mutex
	known *simplelru.LRU[keyName, *topic]
}

// keyName is a key of a namespace; empty: the sidecar's own.
type keyName struct{ namespace, key string }

func newTopics(ctx context.Context, c *console) (*topics, error) {
	known, err := simplelru.NewLRU(maxTopics, func(_ keyName, t *topic) { t.end() })
	return &topics{c: c, ctx: ctx, known: known}, err
}

// topic is a key with its events, for all of its viewers.
type topic struct {
	name keyName
	feed feed[*keyState]
	idle *time.Timer // drops the topic
	end  func()

	mu      sync.Mutex
	events  []event // the newest first
	problem string  // why it is not watched now
	// holders are those of the last reading, by their grants; nil: it was not read yet.
	holders map[string]who
	// compares: the sidecar has no events for anybody, so they are the differences between two readings.
	compares bool
}

// seenByLooks stands before the reason why the events are the differences between two readings.
const seenByLooks = "Outcomes and short holds are missing here: the console can only look at this key from time to time, because "

// event is what happened to a key.
type event struct {
	At, Name string
	Token    int64
	Who      *who
	Text     string
}

// of returns the topic of a key. A page asks for it each time that it shows the key.
func (ts *topics) of(name keyName) *topic {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t, known := ts.known.Get(name); known {
		t.idle.Reset(linger)
		return t
	}
	ctx, cancel := context.WithCancel(ts.ctx)
	t := &topic{name: name, problem: "not connected yet"}
	t.feed.read = func() (*keyState, error) {
		s, err := ts.c.readKey(name)
		if err == nil {
			t.compare(&s.lock)
		}
		return s, err
	}
	t.idle = time.AfterFunc(linger, func() { ts.drop(t) })
	t.end = func() {
		t.idle.Stop()
		cancel()
	}
	ts.known.Add(name, t)
	if name.namespace != "" {
		t.compares, t.problem = true, seenByLooks+"the sidecar watches only keys of its own namespace."
		return t
	}
	go t.watch(ctx, ts.c.Client)
	return t
}

func (ts *topics) drop(t *topic) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if known, _ := ts.known.Peek(t.name); known == t {
		ts.known.Remove(t.name)
	}
}

// watch follows the events of the key until ctx ends.
func (t *topic) watch(ctx context.Context, c *client.Client) {
	for {
		err := t.follow(ctx, c)
		t.note(err)
		if errors.Is(err, locksidecar.ErrUnsupported) {
			return
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

func (t *topic) note(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.problem = ""
	if problem, ok := errors.AsType[*client.ProblemError](err); ok && problem.Status == http.StatusNotImplemented {
		t.compares = true
		t.problem = seenByLooks + problem.Detail
	} else if err != nil {
		t.problem = "No events come now: " + err.Error()
	}
}

// compare keeps the holders of a reading, and makes events of the difference to the one before, if no others come. It does
// not see a hold that was over between two readings, nor why one ended.
func (t *topic) compare(l *client.Lock) {
	now := holdersOf(l)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.compares && t.holders != nil && now != nil {
		for grant, who := range t.holders {
			if _, holds := now[grant]; !holds {
				t.keep(event{Name: "ended", Who: &who})
			}
		}
		for grant, who := range now {
			if _, held := t.holders[grant]; !held {
				t.keep(event{Name: "acquired", Who: &who})
			}
		}
	}
	t.holders = now
}

// holdersOf names who holds a key, by their grants. It is nil if there are more than the reading shows.
func holdersOf(l *client.Lock) map[string]who {
	if l.Mode == client.ModeShared && l.HoldersCount > len(l.Holders) {
		return nil
	}
	holders := map[string]who{}
	if l.Holder != nil && l.Mode != client.ModeShared {
		holders[l.Holder.Grant()] = whoOf(l.Holder.Pod, l.Holder.Session, l.Holder.Owner)
	}
	for i := range l.Holders {
		h := &l.Holders[i].Holder
		holders[h.Grant()] = whoOf(h.Pod, h.Session, h.Owner)
	}
	return holders
}

func (t *topic) follow(ctx context.Context, c *client.Client) error {
	return c.Follow(ctx, t.name.key, func(name string, data []byte) error {
		t.note(nil)
		if name != "state" {
			t.add(name, data)
		}
		return nil
	})
}

func (t *topic) add(name string, data []byte) {
	var d client.Event
	if json.Unmarshal(data, &d) != nil {
		return // of a later version
	}
	e := event{Name: name, Token: d.Token, Text: shortened(d.Said())}
	if d.Holder != nil {
		h := whoOf(d.Holder.Pod, d.Holder.Session, d.Holder.Owner)
		e.Who = &h
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keep(e)
}

// keep adds an event that happened now. The caller holds t.mu.
func (t *topic) keep(e event) {
	e.At = time.Now().UTC().Format(time.TimeOnly)
	t.events = slices.Insert(t.events, 0, e)
	t.events = t.events[:min(len(t.events), maxEvents)]
}

// shortened is a text for one line.
func shortened(text string) string {
	if short := []rune(text); len(short) > maxText {
		return string(short[:maxText]) + "…"
	}
	return text
}

func (t *topic) seen() (events []event, problem string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.events), t.problem
}
