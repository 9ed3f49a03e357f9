package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
)

// maxPayload is how long a payload may be: PostgreSQL takes less than 8,000 bytes.
const maxPayload = 7900

// channelOf is the channel on which an instance is told what to look at. Names of
// channels end at 63 bytes, those of instances do not.
func channelOf(namespace, instance string) string {
	sum := sha256.Sum256([]byte(namespace + "\x00" + instance))
	return "locksidecar_" + hex.EncodeToString(sum[:16])
}

// mouth tells other instances, with few statements: what comes while one is under
// way goes with the next. What it says are ids of grants to look at, nothing that
// anybody would have to trust: who may connect to the database may send the same.
type mouth struct {
	s *Store

	mu       sync.Mutex
	pending  map[string][]string // by channel
	speaking chan struct{}       // closed when nothing more is to be said; nil then
}

// tell sends a word to a channel, in the background. It may be lost.
func (m *mouth) tell(channel, word string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending == nil {
		m.pending = make(map[string][]string)
	}
	m.pending[channel] = append(m.pending[channel], word)
	if m.speaking == nil {
		m.speaking = make(chan struct{})
		go m.speak()
	}
}

// speak sends what there is to say until nothing is.
func (m *mouth) speak() {
	for {
		m.mu.Lock()
		pending := m.pending
		m.pending = nil
		if len(pending) == 0 {
			close(m.speaking)
			m.speaking = nil
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		if err := m.send(pending); err != nil {
			m.s.log.Debug("other instances were not told of hand-offs; they find out when they check", "error", err)
		}
	}
}

func (m *mouth) send(pending map[string][]string) error {
	ctx, cancel, o, err := m.s.begin(context.Background(), "notify")
	if err != nil {
		return err
	}
	defer cancel()
	channels, payloads := payloadsOf(pending)
	_, err = query(ctx, o, sqlNotify, []any{channels, payloads}, nothing)
	return err
}

// payloadsOf joins words to payloads that are not too long.
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

// silence returns when nothing more is to be said, or ctx ends.
func (m *mouth) silence(ctx context.Context) {
	m.mu.Lock()
	speaking := m.speaking
	m.mu.Unlock()
	if speaking == nil {
		return
	}
	select {
	case <-speaking:
	case <-ctx.Done():
	}
}

// hint tells an instance, which may be this one, that a waiter of its own should be
// checked.
func (s *Store) hint(namespace, instance string, grant uuid.UUID) {
	if s.isMine(namespace, instance) {
		s.news(store.News{Attempt: store.Attempt{Grant: grant}})
		return
	}
	s.mouth.tell(channelOf(namespace, instance), grant.String())
}

func (s *Store) isMine(namespace, instance string) bool {
	return instance == s.config.Identity.Instance && namespace == s.config.Identity.Namespace
}
