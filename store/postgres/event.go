package postgres

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/store"
)

const eventPrefix = "event:"

// message is an event as compact ASCII JSON without spaces. Texts are base64.
type message struct {
	Kind     string    `json:"kind"`
	Key      []byte    `json:"key"`
	Token    int64     `json:"token"`
	Outcome  string    `json:"outcome,omitempty"`
	Result   []byte    `json:"result,omitempty"`
	Stopping *stopping `json:"stopping,omitempty"`
}

type stopping struct {
	Reason *[]byte   `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

var (
	eventKinds = map[store.EventKind]string{
		store.EventAcquired: "acquired", store.EventReleased: "released",
		store.EventExpired: "expired", store.EventStopping: "stopping",
	}
	kindsOfEvents   = turned(eventKinds)
	releaseOutcomes = map[store.ReleaseOutcome]string{store.NoOutcome: "", store.Success: "success", store.Failure: "failure"}
	outcomesOf      = turned(releaseOutcomes)
)

func turned[K comparable](words map[K]string) map[string]K {
	by := make(map[string]K, len(words))
	for k, word := range words {
		by[word] = k
	}
	return by
}

// wordOf encodes an event. If it is too long, it omits the result, then the reason. It is empty if even
// that does not fit.
func wordOf(e store.Event) string {
	m := message{
		Kind: eventKinds[e.Kind], Key: []byte(e.Key), Token: e.Token,
		Outcome: releaseOutcomes[e.Outcome], Result: e.Result,
	}
	if e.Stopping != nil {
		m.Stopping = &stopping{At: e.Stopping.At.UTC()}
		if e.Stopping.Reason != nil {
			reason := []byte(*e.Stopping.Reason)
			m.Stopping.Reason = &reason
		}
	}
	for _, shorten := range []func(){
		func() {},
		func() { m.Result = nil },
		func() {
			if m.Stopping != nil {
				m.Stopping.Reason = nil
			}
		},
	} {
		shorten()
		text, err := json.Marshal(m)
		if err == nil && len(eventPrefix)+len(text) <= maxPayload {
			return eventPrefix + string(text)
		}
	}
	return ""
}

// eventOf decodes an event. Any database user can send one, so it must equal what wordOf would write.
func eventOf(word string) (store.Event, bool) {
	text, ok := strings.CutPrefix(word, eventPrefix)
	var m message
	if !ok || json.Unmarshal([]byte(text), &m) != nil {
		return store.Event{}, false
	}
	kind, known := kindsOfEvents[m.Kind]
	outcome, possible := outcomesOf[m.Outcome]
	if !known || !possible || len(m.Key) == 0 || !utf8.Valid(m.Key) || m.Token <= 0 ||
		m.Result != nil && (!json.Valid(m.Result) || !utf8.Valid(m.Result)) || (kind == store.EventStopping) != (m.Stopping != nil) {
		return store.Event{}, false
	}
	e := store.Event{Kind: kind, Key: string(m.Key), Token: m.Token, Outcome: outcome, Result: bytes.Clone(m.Result)}
	if m.Stopping != nil {
		e.Stopping = &store.Stopping{At: m.Stopping.At}
		if m.Stopping.Reason != nil {
			if !utf8.Valid(*m.Stopping.Reason) {
				return store.Event{}, false
			}
			reason := string(*m.Stopping.Reason)
			e.Stopping.Reason = &reason
		}
	}
	return e, true
}
