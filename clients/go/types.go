package locksidecar

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Mode is how a key is held.
type Mode string

// The modes. A free key has none.
const (
	ModeExclusive Mode = "exclusive"
	ModeShared    Mode = "shared"
)

// Bind is what ends a lock without a release.
type Bind string

// A lock of BindSession ends with the client's session, and one of BindTTL after its time.
const (
	BindSession Bind = "session"
	BindTTL     Bind = "ttl"
)

// Outcome is what a release says about the work.
type Outcome string

// The outcomes.
const (
	OutcomeSuccess Outcome = "success"
	OutcomeFailure Outcome = "failure"
)

// Scope is which locks are listed.
type Scope string

// All locks of the namespace, those that this sidecar has granted, and those of this client's session.
const (
	ScopeAll     Scope = "all"
	ScopePod     Scope = "pod"
	ScopeSession Scope = "session"
)

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// toMS rounds up, because 0 means "not at all".
func toMS(d time.Duration) int64 {
	n := d.Milliseconds()
	if d%time.Millisecond > 0 {
		n++
	}
	return n
}

// Holder is who holds a lock.
type Holder struct {
	// Instance is the holder's sidecar: its pod, a random part, and after the last @ its version.
	Instance string
	Pod      string
	// Session is the public name of the session; empty for a lock of BindTTL, which has none.
	Session string
	// Owner is the part of the session that holds the lock, if it was named.
	Owner string
	// AcquiredAt is by the clock of the store, and informative.
	AcquiredAt time.Time
	// Held is for how long.
	Held time.Duration
	// ExpiresIn is when the lock ends without a release or a renewal.
	ExpiresIn time.Duration
	// Data is the JSON that the holder has given; null without.
	Data json.RawMessage
	// Traceparent is the W3C trace context of the call that acquired the lock.
	Traceparent string
}

// UnmarshalJSON reads the API's form.
func (h *Holder) UnmarshalJSON(text []byte) error {
	var w struct {
		Instance    string          `json:"instance"`
		Pod         string          `json:"pod"`
		Session     string          `json:"session"`
		Owner       string          `json:"owner"`
		AcquiredAt  time.Time       `json:"acquired_at"`
		HeldMS      int64           `json:"held_ms"`
		ExpiresInMS int64           `json:"expires_in_ms"`
		Data        json.RawMessage `json:"data"`
		Traceparent string          `json:"traceparent"`
	}
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	*h = Holder{w.Instance, w.Pod, w.Session, w.Owner, w.AcquiredAt, ms(w.HeldMS), ms(w.ExpiresInMS), w.Data, w.Traceparent}
	return nil
}

// String is for people.
func (h *Holder) String() string {
	text := fmt.Sprintf("pod %q", h.Pod)
	if h.Session != "" {
		text += fmt.Sprintf(", session %q", h.Session)
	}
	if h.Owner != "" {
		text += fmt.Sprintf(", owner %q", h.Owner)
	}
	return text + ", for " + h.Held.Round(time.Millisecond).String()
}

// SharedHolder is one of several holders.
type SharedHolder struct {
	Holder

	Token int64
	// Slot is a number that no other holder has; -1 without a limit.
	Slot int
	// Stopping is the request to stop; nil without.
	Stopping *Stopping
}

// UnmarshalJSON reads the API's form.
func (h *SharedHolder) UnmarshalJSON(text []byte) error {
	var w struct {
		Token    int64     `json:"token"`
		Slot     *int      `json:"slot"`
		Stopping *Stopping `json:"stopping"`
	}
	if err := errors.Join(json.Unmarshal(text, &w), h.Holder.UnmarshalJSON(text)); err != nil {
		return err
	}
	h.Token, h.Slot, h.Stopping = w.Token, slotOf(w.Slot), w.Stopping
	return nil
}

func slotOf(slot *int) int {
	if slot == nil {
		return -1
	}
	return *slot
}

// Stopping is a request to the holder to finish, and to release the lock.
type Stopping struct {
	// Reason is for people; empty if none was given.
	Reason string `json:"reason"`
	// RequestedAt is by the clock of the store. It is zero in what the session's stream tells.
	RequestedAt time.Time `json:"requested_at"`
}

// LockInfo is what is known of a lock, free or held.
type LockInfo struct {
	Key string
	// Type is the part of the key before its first colon.
	Type string
	Held bool
	// Mine: the session of this client holds it. Token is then its fencing token, else 0.
	Mine  bool
	Token int64
	Mode  Mode // empty if it is free
	// Limit is the most shared holders at a time; 0 without.
	Limit        int
	HoldersCount int
	// Holder is the exclusive holder, or the shared one with the oldest grant; nil if it is free.
	Holder *Holder
	// Kept: the sidecar of the holder may keep the lock for its next session, so perhaps no session has it now.
	Kept bool
	// Holders are the shared ones in the order of their tokens, the first 100.
	Holders []SharedHolder
	// QueueLength is the number of waiting calls.
	QueueLength int
	// Cached: the sidecar has not asked the store.
	Cached bool
	// Stopping is the request to stop; nil without.
	Stopping *Stopping
	// Raw is the API's answer, with members that this version does not know.
	Raw json.RawMessage
}

// UnmarshalJSON reads the API's form.
func (l *LockInfo) UnmarshalJSON(text []byte) error {
	var w struct {
		Key          string         `json:"key"`
		Type         string         `json:"type"`
		State        string         `json:"state"`
		Mine         bool           `json:"mine"`
		Token        int64          `json:"token"`
		Mode         Mode           `json:"mode"`
		Limit        int            `json:"limit"`
		HoldersCount int            `json:"holders_count"`
		Holder       *Holder        `json:"holder"`
		Kept         bool           `json:"kept"`
		Holders      []SharedHolder `json:"holders"`
		QueueLength  int            `json:"queue_length"`
		Cached       bool           `json:"cached"`
		Stopping     *Stopping      `json:"stopping"`
	}
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	*l = LockInfo{
		Key: w.Key, Type: w.Type, Held: w.State == "held", Mine: w.Mine, Token: w.Token, Mode: w.Mode, Limit: w.Limit,
		HoldersCount: w.HoldersCount, Holder: w.Holder, Kept: w.Kept, Holders: w.Holders, QueueLength: w.QueueLength,
		Cached: w.Cached, Stopping: w.Stopping, Raw: slices.Clone(text),
	}
	return nil
}

// Waiter is a call that waits.
type Waiter struct {
	Key string
	// Position is 1 for the next one.
	Position            int
	Pod, Session, Owner string
	Mode                Mode
	Limit               int
	Waiting             time.Duration
	Traceparent         string
	// Raw is the API's answer.
	Raw json.RawMessage
}

// UnmarshalJSON reads the API's form.
func (w *Waiter) UnmarshalJSON(text []byte) error {
	var in struct {
		Key         string `json:"key"`
		Position    int    `json:"position"`
		Pod         string `json:"pod"`
		Session     string `json:"session"`
		Owner       string `json:"owner"`
		Mode        Mode   `json:"mode"`
		Limit       int    `json:"limit"`
		WaitingMS   int64  `json:"waiting_ms"`
		Traceparent string `json:"traceparent"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*w = Waiter{in.Key, in.Position, in.Pod, in.Session, in.Owner, in.Mode, in.Limit, ms(in.WaitingMS), in.Traceparent, slices.Clone(text)}
	return nil
}

// Description is what a sidecar says about itself.
type Description struct {
	Version   string   `json:"version"`
	API       string   `json:"api"`
	Namespace string   `json:"namespace"`
	Features  []string `json:"features"`
}

// Has reports whether the sidecar has a feature.
func (d *Description) Has(feature string) bool { return slices.Contains(d.Features, feature) }

// Event is what happened to a key.
type Event struct {
	// Type is state, acquired, released, expired or stopping.
	Type string
	Key  string
	// Lock is the lock as it is; only of state.
	Lock  *LockInfo
	Token int64
	// Mode, Limit, Slot and Holder are of acquired, if they are known.
	Mode   Mode
	Limit  int
	Slot   int // -1: none
	Holder *Holder
	// Outcome and Result are those of a release; empty if it had none.
	Outcome Outcome
	Result  json.RawMessage
	// Stopping is the request of stopping.
	Stopping *Stopping
	// Raw is the data as the API sent it.
	Raw json.RawMessage
}

func eventOf(name string, data []byte) (*Event, error) {
	e := &Event{Type: name, Slot: -1, Raw: data}
	if name == "state" {
		e.Lock = &LockInfo{}
		err := json.Unmarshal(data, e.Lock)
		e.Key = e.Lock.Key
		return e, err
	}
	var w struct {
		Key         string          `json:"key"`
		Token       int64           `json:"token"`
		Mode        Mode            `json:"mode"`
		Limit       int             `json:"limit"`
		Slot        *int            `json:"slot"`
		Holder      *Holder         `json:"holder"`
		Outcome     Outcome         `json:"outcome"`
		Result      json.RawMessage `json:"result"`
		Reason      string          `json:"reason"`
		RequestedAt time.Time       `json:"requested_at"`
	}
	err := json.Unmarshal(data, &w)
	e.Key, e.Token, e.Mode, e.Limit, e.Slot, e.Holder, e.Outcome, e.Result = w.Key, w.Token, w.Mode, w.Limit, slotOf(w.Slot), w.Holder, w.Outcome, w.Result
	if name == "stopping" {
		e.Stopping = &Stopping{w.Reason, w.RequestedAt}
	}
	return e, err
}

// Status is the state of a held lock.
type Status struct {
	Key   string
	Token int64
	// Reentry is the number of its owner's entries.
	Reentry int
	// ExpiresIn is how long an app may rely on the lock without news from the sidecar.
	ExpiresIn time.Duration
	Mode      Mode
	Limit     int
	Slot      int // -1: none
	Stopping  *Stopping
}

// Released is the answer to a release.
type Released struct {
	// Free is false while entries of the owner remain.
	Free bool
	// Reentry is the number of remaining entries.
	Reentry int
	Held    time.Duration
}
