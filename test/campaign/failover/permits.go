package failover

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// permits are of a semaphore that an asynchronous failover meets: of three holders, the standby knows one; it misses that
// one gave its permit back, and that another one was granted the third.
type permits struct {
	stays, gives, doomed *client
	rivals               []*client
	settled              chan error // what came of it
}

// permitsOf is the limit.
const permitsOf = 3

func permitsKey(name string) string { return "permits:" + name }

// acquirePermit is nil when the client got a permit, at once.
func (c *client) acquirePermit(key string) error {
	body := fmt.Sprintf(`{"wait_ms":0,"mode":"shared","limit":%d}`, permitsOf)
	a, err := c.call("PUT", lockPath(key), body, "Cache-Control: no-cache")
	if err != nil {
		return err
	}
	if a.Status != 200 {
		return fmt.Errorf("no permit of %s: %d %s", key, a.Status, a.Code)
	}
	var got struct {
		Slot *int `json:"slot"`
	}
	if err := json.Unmarshal(a.Body, &got); err != nil || got.Slot == nil {
		return fmt.Errorf("a permit without a slot: %s %w", a.Body, err)
	}
	c.token, c.slot = a.Token, *got.Slot
	return nil
}

// newPermits lets two clients get permits while the standby still gets all changes.
func (s *scene) newPermits(name string) (*permits, error) {
	sockets := s.sockets()
	p := &permits{settled: make(chan error, 1), stays: &client{socket: sockets[1]}, gives: &client{socket: sockets[0]}, doomed: &client{socket: sockets[0]}}
	for range permitsOf {
		p.rivals = append(p.rivals, &client{socket: sockets[len(p.rivals)%len(sockets)]})
	}
	return p, errors.Join(p.stays.acquirePermit(permitsKey(name)), p.gives.acquirePermit(permitsKey(name)))
}

// isForgotten lets one more client get a permit, and another one release its permit. The standby gets neither change.
func (p *permits) isForgotten(name string) error {
	return errors.Join(p.doomed.acquirePermit(permitsKey(name)), p.gives.release(permitsKey(name)))
}

// settle lets rivals ask for permits from the failover on. They get the two that are free, each with a slot of its own. With a
// quiet time nobody gets one while the forgotten holder believes that it has its own.
func (p *permits) settle(name string) error {
	key := permitsKey(name)
	holders := map[int]*client{p.stays.slot: p.stays}
	for n, rival := range p.rivals[:permitsOf-1] {
		if err := await("a permit is granted", func() error { return rival.acquirePermit(key) }); err != nil {
			return err
		}
		granted, believed := time.Now(), p.doomed.holds(key)
		switch {
		case believed == nil && *quiet:
			return fmt.Errorf("rival %d got slot %d beside a holder of slot %d that the failover forgot", n, rival.slot, p.doomed.slot)
		case rival.token <= p.doomed.token:
			return fmt.Errorf("token %d after %d", rival.token, p.doomed.token)
		case rival.slot < 0 || rival.slot >= permitsOf || holders[rival.slot] != nil:
			return fmt.Errorf("slot %d is given to two, or there is none: %v", rival.slot, holders)
		}
		holders[rival.slot] = rival
		for ; believed == nil && time.Since(granted) < 2*ttl; believed = p.doomed.holds(key) {
			time.Sleep(2 * time.Millisecond) // the pause of a poll
		}
		if both := time.Since(granted); both > ttl {
			return fmt.Errorf("rival %d and a forgotten holder had permits for %s", n, both)
		}
	}
	if err := p.toldLost(key); err != nil {
		return err
	}
	if p.rivals[permitsOf-1].acquirePermit(key) == nil {
		return errors.New("there is one holder more than permits")
	}
	var errs []error
	for _, c := range holders {
		errs = append(errs, c.holds(key), c.release(key))
	}
	return errors.Join(errs...)
}

// toldLost is nil if the forgotten holder learns that the store has lost its permit.
func (p *permits) toldLost(key string) error {
	a, err := p.doomed.call("DELETE", fmt.Sprintf("%s?token=%d", lockPath(key), p.doomed.token), "")
	if err == nil && (a.Code != "lock_lost" || !bytes.Contains(a.Body, []byte(`"store_lost"`))) {
		err = fmt.Errorf("the forgotten holder was told: %d %s %s", a.Status, a.Code, a.Body)
	}
	return err
}

func (p *permits) close() {
	for _, c := range append(p.rivals, p.stays, p.gives, p.doomed) {
		c.close()
	}
}
