package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// lockPath is the path of a key. The key is percent-encoded wholly.
func lockPath(key string) string { return "/v1/locks/" + url.PathEscape(key) }

type lockHolder struct {
	Pod         string          `json:"pod"`
	Session     *string         `json:"session"`
	Owner       *string         `json:"owner"`
	AcquiredAt  time.Time       `json:"acquired_at"`
	HeldMS      int64           `json:"held_ms"`
	ExpiresInMS int64           `json:"expires_in_ms"`
	Data        json.RawMessage `json:"data"`
}

// String is for people, and printable.
func (h *lockHolder) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "held by pod %s", printable(h.Pod))
	if h.Session != nil {
		fmt.Fprintf(&text, ", session %s", printable(*h.Session))
	}
	if h.Owner != nil {
		fmt.Fprintf(&text, ", owner %s", printable(*h.Owner))
	}
	fmt.Fprintf(&text, ", for %s, ", human(h.HeldMS))
	if !h.renewed() {
		text.WriteString("expires ")
	}
	text.WriteString(h.expiry())
	return text.String()
}

// renewed says whether the holder's sidecar renews the lock: only those of sessions.
func (h *lockHolder) renewed() bool { return h.Session != nil }

func (h *lockHolder) bind() string {
	if h.renewed() {
		return "session"
	}
	return "ttl"
}

// expiry is when the lock ends if nobody releases it. One that is renewed does not.
func (h *lockHolder) expiry() string {
	if h.renewed() {
		return "renewed"
	}
	return "in " + human(h.ExpiresInMS)
}

// human writes milliseconds for people: tenths of a second are enough.
func human(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= time.Second {
		d = d.Round(100 * time.Millisecond)
	}
	return d.String()
}

type lockView struct {
	Key   string `json:"key"`
	Type  string `json:"type"`
	State string `json:"state"`
	lockMode
	Holder      *lockHolder    `json:"holder"`  // the first, of a shared lock
	Holders     []sharedHolder `json:"holders"` // of a shared lock, up to 100
	QueueLength int            `json:"queue_length"`
	Stopping    *stopRequest   `json:"stopping"`
}

type sharedHolder struct {
	lockHolder

	Token    int64        `json:"token"`
	Slot     *int         `json:"slot"` // null without a limit
	Stopping *stopRequest `json:"stopping"`
}

type stopRequest struct {
	Reason      *string   `json:"reason"`
	RequestedAt time.Time `json:"requested_at"`
}

// lockMode is how a key is held, and by how many.
type lockMode struct {
	Mode         string `json:"mode"`  // empty when nobody holds the key
	Limit        *int   `json:"limit"` // null: none
	HoldersCount int    `json:"holders_count"`
}

// String is for people: "exclusive", "shared 3", or with a limit "shared 3/5".
func (m *lockMode) String() string {
	if m.Mode != modeShared {
		return cmp.Or(printable(m.Mode), none)
	}
	text := fmt.Sprintf("%s %d", m.Mode, m.HoldersCount)
	if m.Limit != nil {
		text += fmt.Sprintf("/%d", *m.Limit)
	}
	return text
}
