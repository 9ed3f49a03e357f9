package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/store"
)

const (
	// maxPayload limits the bytes of a payload. PostgreSQL accepts less than 8,000.
	maxPayload = 7900
	// eventsMax limits the events that wait to be sent. Above it, the oldest are dropped, because watchers
	// need the present state. One statement sends up to eventsAtOnce.
	eventsMax    = 2000
	eventsAtOnce = 200
)

// channelOf is the channel of an instance. It is a hash, because names end at 63 bytes. The SQL function
// channel computes the same.
func channelOf(namespace, instance string) string {
	sum := sha256.Sum256([]byte(namespace + "\x00" + instance))
	return "locksidecar_" + hex.EncodeToString(sum[:16])
}

// notifier sends hints and events to other instances. What is added during a statement is sent with the
// next one. Any database user can send the same, so grants are not sent here: see words.go.
type notifier struct {
	s *Space

	mu       sync.Mutex
	pending  map[string][]string // by channel
	events   []watchedEvent      // the oldest first
	speaking chan struct{}       // closed when all is sent; nil then
	// added and sent count the words that were to be sent, and those that were tried. said is closed at the next change of sent.
	added, sent uint64
	said        chan struct{}
	dropped     nowAndThen
}

func newNotifier(s *Space) *notifier { return &notifier{s: s, said: make(chan struct{})} }

type watchedEvent struct {
	keyName
	word string
	by   *Store // which knows of the event already
}

// send sends a notification to a channel in the background. It can be lost.
func (m *notifier) send(channel, word string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending == nil {
		m.pending = make(map[string][]string)
	}
	m.pending[channel] = append(m.pending[channel], word)
	m.added++
	m.start()
}

// event sends an event to the watchers of its key, except the view by, in the background, in order. It can be lost.
func (m *notifier) event(by *Store, namespace string, e store.Event) {
	word := wordOf(e)
	if word == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.events) == eventsMax {
		m.events = slices.Delete(m.events, 0, 1)
		m.sent++
		if m.dropped.due(seldom) {
			m.s.log.Warn("events of watched keys are dropped, because the database is too slow")
		}
	}
	m.events = append(m.events, watchedEvent{keyName{namespace, e.Key}, word, by})
	m.added++
	m.start()
}

// start starts the background work. The caller holds m.mu.
func (m *notifier) start() {
	if m.speaking == nil {
		m.speaking = make(chan struct{})
		go m.speak()
	}
}

func (m *notifier) take() (hints map[string][]string, events []watchedEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	hints, m.pending = m.pending, nil
	n := min(len(m.events), eventsAtOnce)
	events, m.events = slices.Clone(m.events[:n]), slices.Delete(m.events, 0, n)
	if len(hints) == 0 && n == 0 {
		m.events = nil // also frees its capacity
		close(m.speaking)
		m.speaking = nil
	}
	return hints, events
}

func (m *notifier) speak() {
	for {
		hints, events := m.take()
		if len(hints) == 0 && len(events) == 0 {
			return
		}
		if len(hints) > 0 {
			if err := m.sendHints(hints); err != nil {
				m.s.log.Debug("hand-offs and signals were not sent to other instances; their checks find them", "error", err)
			}
		}
		if len(events) > 0 {
			if err := m.sendEvents(events); err != nil {
				m.s.log.Debug("events of watched keys were not sent to other instances", "error", err)
			}
		}
		m.note(hints, events)
	}
}

// note counts what was tried.
func (m *notifier) note(hints map[string][]string, events []watchedEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent += uint64(len(events))
	for _, words := range hints {
		m.sent += uint64(len(words))
	}
	close(m.said)
	m.said = make(chan struct{})
}

// sendEvents sends events to watchers. A key without watchers loses its mark in the lock row.
func (m *notifier) sendEvents(events []watchedEvent) error {
	ctx, cancel, o, err := m.s.own.begin(context.Background(), "notify events")
	if err != nil {
		return err
	}
	defer cancel()
	namespaces, keys, words := make([]string, len(events)), make([]string, len(events)), make([]string, len(events))
	fromNamespaces, fromInstances := make([]string, len(events)), make([]string, len(events))
	for i, e := range events {
		namespaces[i], keys[i], words[i] = e.namespace, e.key, e.word
		fromNamespaces[i], fromInstances[i] = e.by.id.Namespace, e.by.id.Instance
	}
	type watcher struct {
		keyName
		there bool
	}
	found, err := query(ctx, o, sqlNotifyEvents, []any{namespaces, keys, words, fromNamespaces, fromInstances},
		func(rows pgx.Rows, w *watcher) error { return rows.Scan(&w.namespace, &w.key, &w.there, nil) })
	if err != nil {
		return err
	}
	unwatched := map[keyName]bool{}
	for _, w := range found {
		if !w.there {
			unwatched[w.keyName] = true
		}
	}
	if len(unwatched) == 0 {
		return nil
	}
	return o.unmark(ctx, slices.Collect(maps.Keys(unwatched)))
}

func (m *notifier) sendHints(pending map[string][]string) error {
	ctx, cancel, o, err := m.s.own.begin(context.Background(), "notify")
	if err != nil {
		return err
	}
	defer cancel()
	channels, payloads := payloadsOf(pending)
	_, err = query(ctx, o, sqlNotify, []any{channels, payloads}, nothing)
	return err
}

func payloadsOf(pending map[string][]string) (channels, payloads []string) {
	for channel, words := range pending {
		var payload strings.Builder
		for _, word := range words {
			if payload.Len() > 0 && payload.Len()+1+len(word) > maxPayload {
				channels, payloads = append(channels, channel), append(payloads, payload.String())
				payload.Reset()
			}
			if payload.Len() > 0 {
				payload.WriteByte(' ')
			}
			payload.WriteString(word)
		}
		channels, payloads = append(channels, channel), append(payloads, payload.String())
	}
	return channels, payloads
}

// drain returns when all is sent that was to be sent before, or ctx ends.
func (m *notifier) drain(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for until := m.added; m.sent < until; {
		said := m.said
		m.mu.Unlock()
		select {
		case <-said:
		case <-ctx.Done():
		}
		if m.mu.Lock(); ctx.Err() != nil {
			return
		}
	}
}
