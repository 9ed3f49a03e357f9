package locksidecar

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
)

// Events follows a key, from all pods. The first event is its state, also after each reconnection. Delivery is best effort: to
// decide something, acquire the lock. It ends with an error: that of ctx, or after [Config.Reconnect] of outage.
func (c *Client) Events(ctx context.Context, key string) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		p := patience{limit: c.config.Reconnect}
		reached, told := false, false
		for {
			err := c.follow(ctx, key, func(e *Event) bool {
				reached, told = true, false
				p.renew()
				return yield(e, nil)
			})
			if errors.Is(err, errEnough) {
				return
			}
			mayReturn := reached && (isAway(err) || isCode(err, "store_unavailable", "limit")) && !errors.Is(err, ErrClosed)
			if mayReturn && !told && c.config.OnOutage != nil {
				c.config.OnOutage(err)
			}
			told = true
			if mayReturn {
				if pause := p.pause(ctx, err); pause == nil {
					continue
				} else if ctx.Err() != nil {
					err = c.t.failure(ctx, call{method: http.MethodGet, path: lockPath(key, "/events")}, ctx.Err())
				}
			}
			yield(nil, err)
			return
		}
	}
}

// errEnough: the reader wants no more events.
var errEnough = errors.New("enough")

// follow reads one stream until its end.
func (c *Client) follow(ctx context.Context, key string, each func(*Event) bool) error {
	c.mu.Lock()
	known, closed := c.session, c.closed
	c.mu.Unlock()
	if closed {
		return closedError()
	}
	if known != nil { // an older sidecar without a session has no such path
		if err := lacking(known.about, "events"); err != nil {
			return err
		}
	}
	of := call{method: http.MethodGet, path: lockPath(key, "/events"), timeout: c.config.Timeout, about: subject{key: key}}
	s, err := c.t.open(ctx, of)
	if err != nil {
		return err
	}
	defer s.close()
	for {
		name, data, err := s.next()
		switch {
		case err != nil && ctx.Err() == nil && c.t.life.Err() != nil:
			return closedError()
		case err != nil:
			return c.t.failure(ctx, of, err)
		case name == "problem":
			return problemOf(http.StatusServiceUnavailable, data, 0, of.about)
		}
		e, err := eventOf(name, data)
		if err != nil {
			return &Error{Code: "bad_answer", Key: key, Detail: "the event " + name + " cannot be read", cause: err}
		}
		if !each(e) {
			return errEnough
		}
	}
}

// Leader is the data of the leader of a key: null without a leader, or if it has none.
func (c *Client) Leader(ctx context.Context, key string) (json.RawMessage, error) {
	info, err := c.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return leaderData(info.Holder), nil
}

func leaderData(holder *Holder) json.RawMessage {
	if holder == nil || holder.Data == nil {
		return json.RawMessage("null")
	}
	return holder.Data
}

// WatchLeader yields the data of the leader, now and after each change: null without a leader. It is as Events in all else. A later
// Update of the data is not an event.
func (c *Client) WatchLeader(ctx context.Context, key string) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		last := ""
		for e, err := range c.Events(ctx, key) {
			if err != nil {
				yield(nil, err)
				return
			}
			var data json.RawMessage
			switch {
			case e.Type == "state":
				data = leaderData(e.Lock.Holder)
			case e.Type == "acquired" && e.Holder != nil:
				data = leaderData(e.Holder)
			case e.Type == "released", e.Type == "expired":
				data = leaderData(nil)
			default:
				continue
			}
			if string(data) != last {
				last = string(data)
				if !yield(data, nil) {
					return
				}
			}
		}
	}
}
