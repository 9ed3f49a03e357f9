package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

const (
	handOffKey = "bench:handoff"
	// handOffWait is how long the waiter waits at most.
	handOffWait = 20 * time.Second
	// handOffLimit bounds a measure that hands off much slower than it should.
	handOffLimit = 90 * time.Second
)

// pods are two sidecars on one database, and a client of the second that waits
// for the lock of a client of the first.
type pods struct {
	*counter
	cluster *pgtest.Cluster
	url     string
	more    []string // settings of the sidecars
	a, b    *process
	waiter  *conn
	// position grows when a call is queued.
	position func() (int64, error)
	ends     []func()
}

// pods starts them. stop is to be called, unless there is an error.
func (b *bench) pods(name string) (_ *pods, err error) {
	p := &pods{}
	defer func() {
		if err != nil {
			p.stop()
		}
	}()
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	p.cluster, p.url = cluster, url
	p.ends = append(p.ends, cluster.Stop)
	if p.counter, err = b.counter(url); err != nil {
		return nil, err
	}
	p.ends = append(p.ends, p.counter.close)
	// The names of the tables are part of the documentation.
	p.position = func() (int64, error) {
		return p.number(`SELECT count(*) FROM locksidecar.waiters WHERE key = $1`, handOffKey)
	}
	if err = p.start(b, name); err != nil {
		return nil, err
	}
	return p, nil
}

// start starts the sidecars.
func (p *pods) start(b *bench, name string) (err error) {
	for _, s := range []struct {
		to   **process
		name string
	}{{&p.a, name + "a"}, {&p.b, name + "b"}} {
		if *s.to, err = b.sidecar(s.name, append([]string{"STORE_URL=" + p.url}, p.more...)...); err != nil {
			return err
		}
		p.ends = append(p.ends, (*s.to).stop)
	}
	if p.waiter, err = dial(p.b.socket); err != nil {
		return err
	}
	p.ends = append(p.ends, p.waiter.close)
	return nil
}

func (p *pods) stop() {
	for _, end := range slices.Backward(p.ends) {
		end()
	}
}

// grant is when the waiter's answer was read.
type grant struct {
	at  time.Time
	err error
}

// wait has the waiter ask for the lock that somebody holds, and returns when it
// stands in the queue.
func (p *pods) wait() (<-chan grant, error) {
	before, err := p.position()
	if err != nil {
		return nil, err
	}
	body := fmt.Sprintf(`{"wait_ms":%d}`, handOffWait.Milliseconds())
	_ = p.waiter.SetDeadline(time.Now().Add(handOffWait + 5*time.Second))
	if _, err := fmt.Fprintf(p.waiter, "PUT /v1/locks/%s HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n%s", handOffKey, len(body), body); err != nil {
		return nil, fmt.Errorf("the waiter: %w", err)
	}
	granted := make(chan grant, 1)
	go func() {
		err := p.waiter.answer()
		at := time.Now()
		if err == nil && p.waiter.status != 200 {
			err = fmt.Errorf("%d %s", p.waiter.status, p.waiter.body)
		}
		if err != nil {
			err = fmt.Errorf("the waiter: %w", err)
		}
		granted <- grant{at: at, err: err}
	}()
	// The sidecars are not asked: they are not to learn anything from it.
	for {
		now, err := p.position()
		if err != nil {
			return nil, err
		}
		if now > before {
			break
		}
		select {
		case g := <-granted:
			return nil, errors.Join(errors.New("the waiter was answered while the lock was held"), g.err)
		case <-time.After(500 * time.Microsecond):
		}
	}
	pause()
	return granted, nil
}

// pause lets who begins to wait come to rest, for a time in step with nothing.
func pause() { time.Sleep(2*time.Millisecond + rand.N(8*time.Millisecond)) }

// handOff lets the waiter wait, has the holder lose its lock, and returns how long
// the waiter waited from then on, in milliseconds. Then the lock is free again.
func (p *pods) handOff(lose func() error) (float64, error) {
	granted, err := p.wait()
	if err != nil {
		return 0, err
	}
	lost := time.Now()
	if err := lose(); err != nil {
		return 0, err
	}
	g := <-granted
	if g.err != nil {
		return 0, g.err
	}
	_, err = p.waiter.release(handOffKey, nil)
	return float64(g.at.Sub(lost)) / float64(time.Millisecond), err
}

// repeat runs rounds, but none begins after the limit. It returns how many ran.
func (b *bench) repeat(rounds int, round func() error) (int, error) {
	began := time.Now()
	n := 0
	for ; n < rounds && time.Since(began) < handOffLimit; n++ {
		if err := b.ctx.Err(); err != nil {
			return n, err
		}
		if err := round(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// handOffs returns how long some hand-offs took, in milliseconds. The first one, which is not counted, prepares.
func (b *bench) handOffs(p *pods, times int) ([]float64, error) {
	holder, err := dial(p.a.socket)
	if err != nil {
		return nil, err
	}
	defer holder.close()
	all := make([]float64, 0, times+1)
	for range times + 1 {
		if err := b.ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := holder.acquire(handOffKey, nil); err != nil {
			return nil, err
		}
		ms, err := p.handOff(func() error {
			_, err := holder.release(handOffKey, nil)
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, ms)
	}
	return all[1:], nil
}
