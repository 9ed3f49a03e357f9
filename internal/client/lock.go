package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LockPath is the path of a key, completely percent-encoded.
func LockPath(key string) string { return "/v1/locks/" + url.PathEscape(key) }

// None stands for a missing value.
const None = "-"

// Holder is a holder of a lock, as the API shows it.
type Holder struct {
	Pod         string          `json:"pod"`
	Session     *string         `json:"session"`
	Owner       *string         `json:"owner"`
	AcquiredAt  time.Time       `json:"acquired_at"`
	HeldMS      int64           `json:"held_ms"`
	ExpiresInMS int64           `json:"expires_in_ms"`
	Data        json.RawMessage `json:"data"`
	Instance    string          `json:"instance"`
	Traceparent *string         `json:"traceparent"`
}

// String is printable text for people.
func (h *Holder) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "held by pod %s", Printable(h.Pod))
	if h.Session != nil {
		fmt.Fprintf(&text, ", session %s", Printable(*h.Session))
	}
	if h.Owner != nil {
		fmt.Fprintf(&text, ", owner %s", Printable(*h.Owner))
	}
	fmt.Fprintf(&text, ", for %s, ", Human(h.HeldMS))
	if !h.renewed() {
		text.WriteString("expires ")
	}
	text.WriteString(h.Expiry())
	return text.String()
}

// renewed reports whether the holder's sidecar renews the lock, as it does for sessions.
func (h *Holder) renewed() bool { return h.Session != nil }

// Bind is "session" or "ttl".
func (h *Holder) Bind() string {
	if h.renewed() {
		return "session"
	}
	return "ttl"
}

// Expiry is when the lock ends without a release. A renewed lock has no such time.
func (h *Holder) Expiry() string {
	if h.renewed() {
		return "renewed"
	}
	return "in " + Human(h.ExpiresInMS)
}

// Human formats milliseconds for people, with tenths of a second.
func Human(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		d = d.Round(100 * time.Millisecond)
	}
	return d.String()
}

// ModeShared is the mode of a lock that several may hold.
const ModeShared = "shared"

// Lock is a key, as the API shows it.
type Lock struct {
	Key   string `json:"key"`
	Type  string `json:"type"`
	State string `json:"state"`
	LockMode
	Holder      *Holder        `json:"holder"`  // the first, of a shared lock
	Kept        bool           `json:"kept"`    // perhaps no session has it: the holder's sidecar keeps it
	Holders     []SharedHolder `json:"holders"` // of a shared lock, up to 100
	QueueLength int            `json:"queue_length"`
	Stopping    *StopRequest   `json:"stopping"`
}

// SharedHolder is one of several holders.
type SharedHolder struct {
	Holder

	Token    int64        `json:"token"`
	Slot     *int         `json:"slot"` // null without a limit
	Stopping *StopRequest `json:"stopping"`
}

// StopRequest is the request to a holder to stop.
type StopRequest struct {
	Reason      *string   `json:"reason"`
	RequestedAt time.Time `json:"requested_at"`
}

// LockMode is the mode of a key, with its number of holders.
type LockMode struct {
	Mode         string `json:"mode"`  // empty for a free key
	Limit        *int   `json:"limit"` // null: none
	HoldersCount int    `json:"holders_count"`
}

// String is for people: "exclusive", "shared 3", or with a limit "shared 3/5".
func (m *LockMode) String() string {
	if m.Mode != ModeShared {
		return cmp.Or(Printable(m.Mode), None)
	}
	text := fmt.Sprintf("%s %d", m.Mode, m.HoldersCount)
	if m.Limit != nil {
		text += fmt.Sprintf("/%d", *m.Limit)
	}
	return text
}

// String is printable. It says whether the holder is asked to stop, and why.
func (s *StopRequest) String() string {
	if s == nil {
		return None
	}
	reason := "no reason given"
	if s.Reason != nil {
		reason = Printable(*s.Reason)
	}
	if s.RequestedAt.IsZero() {
		return reason
	}
	return fmt.Sprintf("%s (asked at %s)", reason, s.RequestedAt.Format(time.TimeOnly+" MST"))
}

// Name is a holder in one text: pod/session (owner).
func (h *Holder) Name() string {
	name := h.Pod
	if h.Session != nil {
		name += "/" + *h.Session
	}
	if h.Owner != nil {
		name += " (" + *h.Owner + ")"
	}
	return name
}

// VersionOf is the version of a sidecar in the name of its instance, or empty.
func VersionOf(instance string) string {
	if at := strings.LastIndexByte(instance, '@'); at >= 0 {
		return instance[at+1:]
	}
	return ""
}

// Grant names this grant as far as the API shows it: others do not see its token.
func (h *Holder) Grant() string { return h.Instance + " " + h.AcquiredAt.Format(time.RFC3339Nano) }

// Waiter is a waiting call.
type Waiter struct {
	Key         string  `json:"key"`
	Position    int     `json:"position"`
	Pod         string  `json:"pod"`
	Session     *string `json:"session"`
	Owner       *string `json:"owner"`
	Mode        string  `json:"mode"`
	Limit       *int    `json:"limit"` // null: none
	WaitingMS   int64   `json:"waiting_ms"`
	Traceparent *string `json:"traceparent"`
}

// Awaited is the mode of the awaited lock, for people: "shared of 5" with a limit of five.
func (w *Waiter) Awaited() string {
	if w.Limit != nil {
		return fmt.Sprintf("%s of %d", Printable(w.Mode), *w.Limit)
	}
	return Printable(w.Mode)
}

// Description is what a sidecar says about itself.
type Description struct {
	Namespace string   `json:"namespace"`
	Features  []string `json:"features"`
}

// ShowsNamespaces reports whether the sidecar shows the locks of other namespaces.
func (d *Description) ShowsNamespaces() bool { return slices.Contains(d.Features, "namespaces") }

// Counts are numbers of locks and calls.
type Counts struct {
	Held        int64 `json:"held"`
	Shared      int64 `json:"shared"`
	Expired     int64 `json:"expired"`
	Waiting     int64 `json:"waiting"`
	AverageHeld int64 `json:"average_held_ms"`
	LongestHeld int64 `json:"longest_held_ms"`
}

// Stats are the counts of a database.
type Stats struct {
	Counts
	Types []struct {
		Counts
		Namespace string `json:"namespace"`
		Type      string `json:"type"`
	} `json:"types"`
	Pods []struct {
		Counts
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
	} `json:"pods"`
}

// inText: quotation marks and backslashes need no escapes in a text.
var inText = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// Printable makes a foreign text (a key, a name, a reason) safe for a terminal. As in Go, it escapes control
// characters, marks of writing direction, line separators, and invalid UTF-8.
func Printable(s string) string {
	quoted := strconv.Quote(s)
	return inText.Replace(quoted[1 : len(quoted)-1])
}
