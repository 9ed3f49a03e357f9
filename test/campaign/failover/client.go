package failover

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

// client is an app's connection to a sidecar, and what it holds: one lock.
type client struct {
	socket string
	conn   *wire.Conn
	token  int64
	slot   int // of a permit
}

const answerLimit = 15 * time.Second

func lockPath(key string) string { return "/v1/locks/" + url.PathEscape(key) }

// acquire reports whether the client got a lock, at once.
func (c *client) acquire(key string) bool {
	a, err := c.call("PUT", lockPath(key), `{"wait_ms":0}`, "Cache-Control: no-cache")
	if err != nil || a.Status != 200 {
		return false
	}
	c.token = a.Token
	return true
}

// asks is nil when the client got the lock.
func (c *client) asks(key string) error {
	if !c.acquire(key) {
		return fmt.Errorf("%s is not to be had", key)
	}
	return nil
}

// release gives it back.
func (c *client) release(key string) error {
	a, err := c.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(key), c.token), "")
	if err == nil && a.Status != 200 {
		err = fmt.Errorf("the release of %s: %d %s", key, a.Status, a.Code)
	}
	return err
}

// holds is nil while the sidecar says that the client holds the lock.
func (c *client) holds(key string) error {
	a, err := c.call("PATCH", lockPath(key), fmt.Sprintf(`{"token":%d}`, c.token))
	if err == nil && a.Status != 200 {
		err = fmt.Errorf("%s is not held any more: %d %s", key, a.Status, a.Code)
	}
	return err
}

func (c *client) call(method, path, body string, headers ...string) (a wire.Answer, err error) {
	if c.conn == nil {
		if c.conn, err = wire.Dial(c.socket); err != nil {
			c.conn = nil
			return a, err
		}
	}
	a, err = c.conn.Call(answerLimit, method, path, body, headers...)
	if err != nil || a.Closes {
		c.close()
	}
	return a, err
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// prober acquires and releases keys of its own at one sidecar, again and again, each once,
// for one may come back after an asynchronous failover; and notes when they were granted.
type prober struct {
	client
	name string

	mu     sync.Mutex
	grants []time.Time
}

func (p *prober) run(ctx context.Context) {
	defer p.close()
	for n := 0; ctx.Err() == nil; n++ {
		if key := fmt.Sprintf("%s:%d", p.name, n); p.acquire(key) {
			p.mu.Lock()
			p.grants = append(p.grants, time.Now())
			p.mu.Unlock()
			_ = p.release(key)
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// grantedAfter waits for the first grant after a moment.
func (p *prober) grantedAfter(t time.Time, limit time.Duration) (time.Duration, error) {
	for time.Since(t) < limit {
		if first, found := p.firstAfter(t); found {
			return first.Sub(t), nil
		}
		time.Sleep(2 * time.Millisecond) // the pause of a poll
	}
	return 0, fmt.Errorf("%s: no grant within %s", p.name, limit)
}

func (p *prober) firstAfter(t time.Time) (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.grants, func(g time.Time) bool { return g.After(t) })
	if i < 0 {
		return time.Time{}, false
	}
	return p.grants[i], true
}
