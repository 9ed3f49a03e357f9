// Package load is the apps of a campaign: clients that acquire, hold, use and release
// locks over the sockets of sidecars, in all the ways that the contract allows, and
// write down what they asked for and what they were told.
//
// A client believes that it holds a lock from the answer on and up to its Until, unless
// it has asked again; it ends its belief before it releases. While it believes, it
// writes its token to the resource that the lock protects (see [Fence]).
//
// Sidecars may vanish and come back at any time, calls may never be answered. This ends a
// session, and is recorded; it does not end a client.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// Config describes the clients of one process.
type Config struct {
	// Sockets are the sidecars'. A client stays with one, as an app with its pod.
	Sockets []string
	// Clients is how many there are in all, Keys how many locks they want: a multiple of 4.
	Clients, Keys int
	// Seed chooses what they do. The outcome depends on the machine, too.
	Seed uint64
	// Recorder takes the history.
	Recorder *history.Recorder
	// TTL is the sidecars' LOCKSIDECAR_TTL.
	TTL time.Duration
	// Fence is what the locks protect.
	Fence *Fence
	// Force lets clients break locks now and then, which sidecars must allow.
	Force bool
	// Contend, once it is closed, makes clients do little but wait in the queue: that is what
	// the rules for calm times judge.
	Contend <-chan struct{}
}

// patience is how long a client waits for an answer, in addition to its own wait_ms.
const patience = 15 * time.Second

// Key is the name of a lock, from 0 up to [Config.Keys].
func Key(i int) string { return fmt.Sprintf("campaign:%04d", i) }

// contended is how many keys there are for [Config.Contend] only. The others are not judged
// for a minute after somebody broke them, or wanted them with others, in a fault.
const contended = 4

// allKeys is how many keys clients have that use so many at all times.
func allKeys(keys int) int { return firstShared(keys) + sharedKeys }

// hotKey is the number of the key that all clients want in a rush.
func hotKey(keys int) int { return keys + 4*contended }

// isRush is true in one second of five: then so many want one key that several behind the same sidecar wait
// directly one behind the other. Their sidecar hands the key on to them without the store.
func isRush() bool { return history.Now()/int64(time.Second)%5 == 0 }

// Locks are used in different ways, by their numbers. For every fourth nobody waits: who
// does not get it tries again, so that several want it in the moment in which it is free.
func onlyTried(key string) bool { return keyNumber(key)%4 == 3 }

// Every fourth is mostly held for long, up to some TTLs.
func heldLong(key string) bool { return keyNumber(key)%4 == 2 }

// keyNumber is the i of [Key].
func keyNumber(key string) (i int) {
	_, _ = fmt.Sscanf(key, "campaign:%d", &i)
	return i
}

// Run drives the clients until ctx ends. Then those that wait leave, those that hold
// release or drop, as they had meant to.
func Run(ctx context.Context, cfg Config) error {
	if len(cfg.Sockets) == 0 || cfg.Clients < 1 || cfg.Keys < 1 || cfg.Keys%4 != 0 || cfg.Recorder == nil || cfg.Fence == nil || cfg.TTL <= 0 {
		return errors.New("load: sockets, clients, keys, a recorder, a fence and a TTL are needed")
	}
	var wg sync.WaitGroup
	for n := range cfg.Clients {
		c := newClient(cfg, n)
		wg.Go(func() { c.run(ctx) })
	}
	wg.Wait()
	_, err := cfg.Recorder.Ops()
	return err
}

// client is one app's thread. It has a session at a time.
type client struct {
	cfg     Config
	n       int
	sidecar int
	rng     *rand.Rand
	zipf    *rand.Zipf
	links   int // connections so far
	// calls carries its calls, own is the session that they belong to.
	calls *conn
	own   *session
	// later is how long the client shall wait before it asks again, as the sidecar last said.
	later time.Duration
}

func newClient(cfg Config, n int) *client {
	rng := rand.New(rand.NewPCG(cfg.Seed, uint64(n)))
	return &client{
		cfg: cfg, n: n, sidecar: n % len(cfg.Sockets), rng: rng,
		// A few keys are asked for by all, most by few.
		zipf: rand.NewZipf(rng, 1.3, 2, uint64(cfg.Keys-1)),
	}
}

// key chooses one that many want, most likely.
func (c *client) key() string { return Key(int(c.zipf.Uint64())) }

// one of n is true.
func (c *client) oneOf(n int) bool { return c.rng.IntN(n) == 0 }

// upTo is a random time.
func (c *client) upTo(d time.Duration) time.Duration {
	return time.Duration(c.rng.Int64N(int64(d) + 1))
}

// note is an operation of this client.
func (c *client) note(kind history.Kind, key string) history.Op {
	return history.Op{Client: c.n, Sidecar: c.sidecar, Kind: kind, Key: key}
}

func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		c.backOff(ctx)
		if !c.connected(ctx) {
			continue
		}
		switch {
		case isRush():
			c.lockFor(ctx, want{key: Key(hotKey(c.cfg.Keys)), wait: -1})
		case c.contends() && c.oneOf(4):
			c.share(ctx, Key(firstShared(c.cfg.Keys)+inUse+c.rng.IntN(sharedKeys-inUse)), -1)
		case c.contends() && c.rng.IntN(5) < 2:
			c.affine(ctx, firstAffine(c.cfg.Keys)+affineInUse, affineKeys-affineInUse)
		case c.contends():
			c.lockFor(ctx, want{key: Key(c.cfg.Keys + 4*c.rng.IntN(contended)), wait: -1})
		default:
			c.turn(ctx)
		}
	}
	c.drop()
}

// call makes a call over the client's connection, and notes when to come again.
func (c *client) call(ctx context.Context, limit time.Duration, method, path, body string, headers ...string) (answer, error) {
	a, err := c.calls.call(ctx, limit, method, path, body, headers...)
	c.later = max(c.later, a.retryAfter)
	return a, err
}

// backOff waits for as long as the sidecar has asked for, like every well-behaved client,
// and a little more, so that not all come back at once.
func (c *client) backOff(ctx context.Context) {
	if c.later > 0 {
		rest(ctx, c.later+c.upTo(c.later/4))
		c.later = 0
	}
}

// contends reports whether to do nothing but wait in the queue.
func (c *client) contends() bool {
	select {
	case <-c.cfg.Contend:
		return true
	default:
		return false
	}
}

// turn does one thing.
func (c *client) turn(ctx context.Context) {
	switch p := c.rng.IntN(100); {
	case c.oneOf(4):
		c.share(ctx, c.sharedKey(), c.wait())
	case c.oneOf(5):
		c.affine(ctx, firstAffine(c.cfg.Keys), affineInUse)
	case p < 64:
		c.lock(ctx, false)
	case p < 72:
		c.lock(ctx, true)
	case p < 76:
		c.several(ctx)
	case p < 90:
		c.look(ctx)
	case p < 93:
		c.ask(ctx, history.Stop)
	case p < 95 && c.cfg.Force:
		c.ask(ctx, history.Force)
	default:
		c.drop() // and come back with another kind of session, perhaps
	}
}

// connected opens a session if there is none, and reports whether there is one now.
func (c *client) connected(ctx context.Context) bool {
	if c.calls != nil {
		return true
	}
	pause := 20 * time.Millisecond
	calls, err := dial(ctx, c.cfg.Sockets[c.sidecar])
	if err != nil {
		rest(ctx, pause+c.upTo(pause))
		return false
	}
	c.links++
	c.calls, c.own = calls, &session{name: fmt.Sprintf("%s/%d.%d", c.cfg.Recorder.Process(), c.n, c.links)}
	if c.oneOf(5) {
		if c.own.open(ctx, c.cfg.Sockets[c.sidecar], c.lost) != nil {
			c.later = max(c.later, c.own.later)
			c.drop()
			rest(ctx, pause+c.upTo(pause))
			return false
		}
	}
	return true
}

// drop ends the session by closing its connection, and records that. The next turn
// connects anew.
func (c *client) drop() {
	if c.calls == nil {
		return
	}
	op := c.note(history.Drop, "")
	op.Session = c.own.name
	op = c.cfg.Recorder.Begin(op)
	c.own.close()
	_ = c.calls.Close()
	c.cfg.Recorder.End(op)
	c.calls, c.own = nil, nil
}

// lost records that the sidecar has reported a loss.
func (c *client) lost(s *session, key string, token int64, reason string) {
	op := c.note(history.Lost, key)
	op.Session, op.Token, op.Note = s.name, token, reason
	c.cfg.Recorder.Add(op)
}

// rest waits for a while, or for the end.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
