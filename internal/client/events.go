package client

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"
)

// Follow watches the events of a key, and passes each one on as it comes; the first is the `state` when the watch began. It ends with an error
// of each, of the sidecar, or with the stream. When ctx ends, it ends too. It gives up if the stream does not begin in time.
func (c *Client) Follow(ctx context.Context, key string, each func(name string, data []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(c.patience, func() { cancel(context.DeadlineExceeded) })
	resp, err := c.Send(ctx, http.MethodGet, LockPath(key)+"/events", nil)
	if !late.Stop() && err == nil {
		_ = resp.Body.Close()
		return c.Explain(context.DeadlineExceeded)
	}
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer))
		return NewProblem(resp.StatusCode, text)
	}
	for lines := bufio.NewReader(resp.Body); ; {
		name, data, err := NextEvent(lines)
		switch {
		case err != nil:
			return c.Explain(err)
		case name == "problem":
			return NewProblem(http.StatusServiceUnavailable, data)
		}
		if err := each(name, data); err != nil {
			return err
		}
	}
}

// Event is the data of an event, as far as people are told about it.
type Event struct {
	Token   int64           `json:"token"`
	Mode    string          `json:"mode"` // only when acquired, and known
	Limit   *int            `json:"limit"`
	Slot    *int            `json:"slot"`
	Holder  *Holder         `json:"holder"`
	Outcome *string         `json:"outcome"`
	Result  json.RawMessage `json:"result"`
	Reason  *string         `json:"reason"`
}

// Said is what an app has said: the outcome with its result, or the reason of a request to stop. It is printable.
func (e *Event) Said() string {
	var parts []string
	for _, text := range []*string{e.Outcome, e.Reason} {
		if text != nil {
			parts = append(parts, Printable(*text))
		}
	}
	if result := string(e.Result); result != "" && result != "null" {
		parts = append(parts, Printable(result))
	}
	return strings.Join(parts, " ")
}
