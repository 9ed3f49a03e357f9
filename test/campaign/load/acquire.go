package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// grip is a lock that a client was given.
type grip struct {
	key     string
	session string // empty for bind:ttl
	token   int64
	until   int64
	shared  bool
	slot    int // as in [history.Op]
}

// request is the body of an acquire. The data names the operation, so that whoever
// looks into the database knows who waits.
type request struct {
	Keys      []string `json:"keys,omitempty"`
	Wait      int64    `json:"wait_ms"`
	TTL       int64    `json:"ttl_ms,omitempty"`
	Bind      string   `json:"bind,omitempty"`
	Mode      string   `json:"mode,omitempty"`
	Limit     int      `json:"limit,omitempty"`
	RequestID string   `json:"request_id,omitempty"`
	Data      struct {
		Op string `json:"op"`
	} `json:"data"`
}

func (r request) String() string {
	text, _ := json.Marshal(r)
	return string(text)
}

// wait chooses how long to wait for a lock.
func (c *client) wait() int64 {
	waits := []int64{-1, -1, -1, 0, 0, 1, 20, 100, 500, 2 * c.cfg.TTL.Milliseconds()}
	return waits[c.rng.IntN(len(waits))]
}

// ttl chooses a TTL of its own.
func (c *client) ttl() int64 {
	ttl := c.cfg.TTL.Milliseconds()
	return max(history.ShortestTTL.Milliseconds(), []int64{0, ttl / 2, 2 * ttl}[c.rng.IntN(3)])
}

// limit is how long the client waits for the answer.
func limit(wait int64) time.Duration {
	if wait < 0 {
		return time.Minute
	}
	return time.Duration(wait)*time.Millisecond + patience
}

// lock gets one lock, for the session or on a lease of its own, uses it and releases it.
func (c *client) lock(ctx context.Context, byTTL bool) {
	key := c.key()
	if !onlyTried(key) {
		c.lockFor(ctx, want{key: key, wait: c.wait(), byTTL: byTTL})
		return
	}
	for range 10 {
		if !c.connected(ctx) || c.lockFor(ctx, want{key: key, byTTL: byTTL}) || ctx.Err() != nil {
			return
		}
		rest(ctx, c.upTo(2*time.Millisecond))
		c.backOff(ctx)
	}
}

// want is what one acquire asks for.
type want struct {
	key    string
	wait   int64
	byTTL  bool
	shared bool
	limit  int
}

// lockFor is lock with one acquire, and reports whether that was granted.
func (c *client) lockFor(ctx context.Context, w want) bool {
	op := c.note(history.Acquire, w.key)
	op.Wait, op.Shared, op.Limit = w.wait, w.shared, w.limit
	req := request{Wait: w.wait, Limit: w.limit}
	if w.shared {
		req.Mode = "shared"
	}
	attempts := 1
	if w.byTTL {
		// Such an acquire can be repeated: the same id gets the same grant.
		req.Bind, req.TTL, attempts = "ttl", c.ttl(), 3
		req.RequestID = c.uuid()
	} else {
		op.Session = c.own.name
		seldom := 4
		if isAffine(c.cfg.Keys, w.key) {
			seldom = 60 // another TTL is another lease
		}
		if c.oneOf(seldom) && !c.isHot(w.key) {
			req.TTL = c.ttl()
		}
	}
	op = c.cfg.Recorder.Begin(op)
	for op.Repeats < attempts {
		req.Data.Op = op.InLine()
		sent := history.Now()
		a, err := c.acquire(ctx, "PUT", lockPath(op.Key), req)
		if g, ok := c.granted(op, a, err, sent); ok {
			c.hold(ctx, []grip{g})
			return true
		}
		if err == nil && op.Repeats == 0 && a.status != 503 {
			op = refused(op, a)
			break
		}
		// An earlier attempt may have been carried out, whatever this one was told.
		op.Note = a.note()
		c.backOff(ctx)
		if ctx.Err() != nil || !c.connected(ctx) {
			break
		}
		op.Repeats++
	}
	c.cfg.Recorder.End(op)
	return false
}

// acquire sends the request. Now and then the client leaves while it waits.
func (c *client) acquire(ctx context.Context, method, path string, req request) (answer, error) {
	patient := limit(req.Wait)
	if req.Wait != 0 && c.oneOf(10) {
		patient = c.upTo(c.cfg.TTL / 4)
	}
	var headers []string
	if req.Bind == "" {
		headers = c.own.headers()
	}
	if c.oneOf(3) {
		headers = append(slices.Clone(headers), "Cache-Control: no-cache")
	}
	a, err := c.call(ctx, patient, method, path, req.String(), headers...)
	if err != nil || a.status == 410 {
		defer c.drop()
	}
	if errors.Is(err, errClosing) && a.status != 200 {
		err = nil
	}
	return a, err
}

// granted takes a grant, and records it.
func (c *client) granted(op history.Op, a answer, err error, sent int64) (grip, bool) {
	if err != nil || a.status != 200 || !a.Granted {
		return grip{}, false
	}
	op.Outcome, op.Token, op.Until, op.Slot = history.Granted, a.Token, believe(sent, a), a.slot()
	op.Return = history.Now()
	c.cfg.Recorder.End(op)
	return grip{key: op.Key, session: op.Session, token: op.Token, until: op.Until, shared: op.Shared, slot: op.Slot}, true
}

// believe is up to when an answer can be relied upon. The sidecar had the request after
// it was sent, and counted from there.
func believe(sent int64, a answer) int64 {
	return sent + (a.Waited+a.ExpiresIn)*int64(time.Millisecond)
}

// refused is the outcome of an acquire that was answered, and not granted.
func refused(op history.Op, a answer) history.Op {
	op.Note = a.note()
	switch {
	case a.Code == "held":
		op.Outcome, op.Cached = history.Held, a.Cached
	case a.Code == "limit_mismatch":
		op.Outcome = history.Mismatch
	case a.Code == "wait_timeout":
		op.Outcome, op.Position, op.Unnamed = history.Timeout, a.Position, a.Holder == nil
	case a.status < 500:
		op.Outcome = history.Refused
	}
	return op
}

// several acquires up to four locks at once. Meanwhile it may keep some of them from all
// others, so few wait for long, and most want what few others want.
func (c *client) several(ctx context.Context) {
	req := request{Keys: []string{c.key()}}
	for range 1 + c.rng.IntN(3) {
		key := Key(c.rng.IntN(c.cfg.Keys))
		if c.oneOf(8) {
			key = Key(firstAffine(c.cfg.Keys) + c.rng.IntN(affineInUse))
		}
		if !slices.Contains(req.Keys, key) && (isAffine(c.cfg.Keys, key) || !onlyTried(key)) {
			req.Keys = append(req.Keys, key)
		}
	}
	switch req.Wait = c.wait(); {
	case onlyTried(req.Keys[0]):
		req.Wait = 0
	case req.Wait < 0 && !c.oneOf(3):
		req.Wait = 50
	}
	if c.oneOf(4) {
		req.Bind, req.TTL = "ttl", c.ttl()
	}
	var ops []history.Op
	for _, key := range req.Keys {
		op := c.note(history.Acquire, key)
		op.Wait = req.Wait
		if req.Bind == "" {
			op.Session = c.own.name
		}
		if len(ops) > 0 {
			op.Group, op.Call = ops[0].Group, ops[0].Call
		} else {
			op.Group = c.uuid()
		}
		ops = append(ops, c.cfg.Recorder.Begin(op))
	}
	req.Data.Op = ops[0].InLine()
	sent := history.Now()
	a, err := c.acquire(ctx, "POST", "/v1/locks", req)
	grips := make([]grip, 0, len(ops))
	for i, op := range ops {
		if err == nil && a.status == 200 && i < len(a.Locks) {
			if g, ok := c.granted(op, withStatus(a.Locks[i]), nil, sent); ok {
				grips = append(grips, g)
			}
			continue
		}
		if err == nil {
			op = refused(op, a)
		}
		c.cfg.Recorder.End(op)
	}
	if len(grips) > 0 {
		c.hold(ctx, grips)
	}
}

// withStatus makes an answer of one of several grants.
func withStatus(a answer) answer {
	a.status = 200
	return a
}

// uuid is a random id.
func (c *client) uuid() string {
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", c.rng.Uint32(), c.rng.Uint32()>>16,
		c.rng.Uint32()>>20, c.rng.Uint32()>>20, c.rng.Uint64()>>16)
}
