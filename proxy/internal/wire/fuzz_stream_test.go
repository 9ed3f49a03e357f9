package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/internal/testing/apitest"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// told is one server-sent event, as a client sees it.
type told struct{ name, data string }

// parseEvents reads a stream as the HTML standard says, and not as this package writes
// it: a line ends with CR, LF or both; an event without data is none.
func parseEvents(text string) (events []told) {
	text = strings.TrimPrefix(text, "\ufeff")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	var e told
	var data []string
	lines := strings.Split(text, "\n")
	for _, line := range lines[:len(lines)-1] { // what has no end is no line
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != nil {
				e.data = strings.Join(data, "\n")
				events = append(events, e)
			}
			e, data = told{}, nil
		case field == "event":
			e.name = value
		case field == "data":
			data = append(data, value)
		}
	}
	return events
}

// A reader finds all events as they are documented, whatever apps, operators and other
// instances have written, and however the connection cuts the stream.
func FuzzStream(f *testing.F) {
	f.Add("job:1", "because", []byte(`{"a":[1]}`), int64(7))
	f.Add("\n\nevent: lost\ndata: {}\n\n", "\r", []byte("{\r\n\n\"a\"\n:1}"), int64(1<<53-1))
	f.Add("\xff", "\u2028\u0085\x00", []byte(""), int64(-1))
	f.Fuzz(func(t *testing.T, key, text string, data []byte, n int64) {
		if !json.Valid(data) || !utf8.Valid(data) {
			data = nil // stores keep JSON
		}
		at := time.UnixMicro(n % 1e15)
		stopping := &store.Stopping{Reason: &text, At: at}
		lock := store.Lock{Key: key, Held: true, Token: n, Stopping: stopping, Holder: store.Holder{
			Instance: text, Pod: text, Session: text, Owner: text, AcquiredAt: at, HeldFor: time.Duration(n), Data: data,
		}}
		token := 1 + n&maxToken>>1
		share := lock
		share.Shared, share.Limit, share.HoldersCount = true, int(n&511), 1
		share.Holders = []store.Share{{Token: token, Slot: int(n & 255), Stopping: stopping, Holder: lock.Holder}}
		const session, key1 = "POST /v1/sessions", "GET /v1/locks/{key}/events"
		pushed := []struct {
			Event
			name, stream string
		}{
			{LostEvent{Key: key, Token: token, Reason: lease.LostExpired}, "lost", session},
			{StopEvent{Key: key, Token: token, Reason: &text}, "stop", session},
			{StateEvent(lease.View{Lock: lock}), "state", key1},
			{KeyEvent{Kind: store.EventAcquired, Key: key, Token: token, Lock: lock}, "acquired", key1},
			{StateEvent(lease.View{Lock: share}), "state", key1},
			{KeyEvent{Kind: store.EventAcquired, Key: key, Token: token, Lock: share}, "acquired", key1},
			{KeyEvent{Kind: store.EventReleased, Key: key, Token: token, Outcome: store.Success, Result: data}, "released", key1},
			{KeyEvent{Kind: store.EventExpired, Key: key, Token: token}, "expired", key1},
			{KeyEvent{Kind: store.EventStopping, Key: key, Token: token, Stopping: stopping}, "stopping", key1},
		}
		wire := []byte(StreamHead)
		for i, p := range pushed {
			wire = AppendEvents(wire, []Event{p.Event}, i%2 == 0)
		}
		wire = append(wire, LastChunk...)
		got := parseEvents(readStream(t, bytes.NewReader(wire)))
		if again := parseEvents(readStream(t, iotest.OneByteReader(bytes.NewReader(wire)))); len(again) != len(got) {
			t.Fatalf("%d events, cut into bytes %d", len(got), len(again))
		}
		if len(got) != len(pushed) {
			t.Fatalf("%d events of %d: %q", len(got), len(pushed), wire)
		}
		for i, p := range pushed {
			if got[i].name != p.name {
				t.Fatalf("event %q, want %q: %q", got[i].name, p.name, wire)
			}
			method, path, _ := strings.Cut(p.stream, " ")
			apitest.CheckEvent(t, method, path, p.name, []byte(got[i].data))
			sameKey(t, got[i].data, key)
		}
	})
}

func readStream(t *testing.T, r io.Reader) string {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(r), nil) //nolint:bodyclose // a body of bytes in memory
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func sameKey(t *testing.T, data, key string) {
	t.Helper()
	var e struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil || e.Key != string([]rune(key)) {
		t.Fatalf("%q of the key %q, %v", data, key, err)
	}
}
