package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

// errLate: the stream has not begun in time.
var errLate = errors.New("late")

// Follow watches the events of a key, and passes each one on as it comes; the first is the `state` when the watch began. It ends with an error
// of each, of the sidecar, or with the stream. When ctx ends, it ends too. It gives up if the stream does not begin in time.
func (c *Client) Follow(ctx context.Context, key string, each func(name string, data []byte) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(c.patience, func() { cancel(errLate) })
	defer late.Stop()
	for event, err := range c.calls.Events(ctx, key) {
		late.Stop()
		if errors.Is(context.Cause(ctx), errLate) {
			return exitcode.With(exitcode.Unavailable, fmt.Errorf("the sidecar at %s does not answer in time", c.Socket))
		}
		if err != nil {
			return c.Explain(err)
		}
		if err := each(event.Type, event.Raw); err != nil {
			return err
		}
	}
	return nil
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
