package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
)

// Post implements [cas.Backend].
func (b *Server) Post(ctx context.Context, letters []cas.Letter) error {
	ctx, cancel := context.WithTimeout(ctx, b.config.Timeout)
	defer cancel()
	const stage = "redis_post"
	ctx, end := b.span(ctx, stage)
	began := time.Now()
	_, err := b.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
		for i := range letters {
			l := &letters[i]
			p.Publish(ctx, b.channel(l.To), fmt.Sprintf("0 %d %s%s", len(l.Key), l.Key, l.Body))
		}
		return nil
	})
	end(err)
	b.config.Metrics.Statement(ctx, stage, time.Since(began), err)
	if err != nil {
		return classify("post", err, false)
	}
	return nil
}

// listener hears the letters to all instances of a process on one connection, which has a subscription for each of them.
type listener struct {
	// telling is held while an instance is told something, so that nobody is after the end of its part.
	telling sync.Mutex
	// heard is when the listener heard something last: a letter, or the answer to a ping. It is nil while it has no connection.
	heard atomic.Pointer[time.Time]
	// again makes the listener connect again.
	again atomic.Pointer[context.CancelFunc]
	// some has an element if there may be a mailbox.
	some chan struct{}

	mu        sync.Mutex
	mailboxes map[string]*mailbox // by channel
	// subscriptions are those of the present connection; nil: there is none.
	subscriptions *goredis.PubSub
	deaf          error // why letters do not arrive
}

// mailbox is what the listener does for one instance.
type mailbox struct {
	instance, channel string
	deliver           func(cas.Letter)
	lost              func()

	// The listener's mutex guards the following fields.

	started, ended bool
	listens        bool // letters arrive, or have arrived
	here           bool // they do on the present connection
}

func (l *listener) init() { l.mailboxes, l.some = map[string]*mailbox{}, make(chan struct{}, 1) }

// join begins to listen for an instance. If the listener has a connection, the subscription is requested there, otherwise when it has one.
func (b *Server) join(ctx context.Context, m *mailbox) error {
	l := &b.listener
	l.mu.Lock()
	if m.started || m.ended {
		l.mu.Unlock()
		return errors.New("store/redis: started twice, or stopped")
	}
	m.started = true
	l.mailboxes[m.channel] = m
	present := l.subscriptions
	l.mu.Unlock()
	select {
	case l.some <- struct{}{}:
	default:
	}
	if present != nil {
		_ = present.Subscribe(ctx, m.channel) // if this fails, the listener notices, and connects again
	}
	return nil
}

// part ends it.
func (b *Server) part(m *mailbox) {
	l := &b.listener
	l.mu.Lock()
	first := m.started && !m.ended
	m.ended, m.here = true, false
	if first {
		delete(l.mailboxes, m.channel)
	}
	present := l.subscriptions
	l.mu.Unlock()
	if !first {
		return
	}
	if present != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pongWithin)
		_ = present.Unsubscribe(ctx, m.channel)
		cancel()
	}
	l.telling.Lock()   // for what it is being told
	l.telling.Unlock() //nolint:staticcheck,gocritic // see above
}

// ready is nil if letters to an instance arrive, or have arrived.
func (l *listener) ready(m *mailbox) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !m.listens || m.ended {
		return &store.Error{Op: "ready", Err: errors.Join(errNotHeard, l.deaf)}
	}
	return nil
}

func (l *listener) hears(m *mailbox) bool {
	heard := l.heard.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	return m.here && heard != nil && time.Since(*heard) < pingAfter+pongWithin
}

// pingAfter is how long the listener hears nothing before it sends a ping, and then again before it connects anew.
const pingAfter = 2 * time.Second

// pongWithin is how soon a ping must be answered, or the instances do not rely on hearing letters. It does not end the connection.
const pongWithin = 500 * time.Millisecond

// listen delivers the letters to the instances. After each new connection but an instance's first, letters may be lost.
func (b *Server) listen(ctx context.Context) {
	var failures cas.Backoff
	for b.listener.awaitMailbox(ctx) {
		one, end := context.WithCancel(ctx)
		b.listener.again.Store(&end)
		err := b.hear(one, &failures)
		if one.Err() == nil {
			b.listener.hearing(explained(err))
			b.Doubt()
		}
		end()
		cas.Pause(ctx, failures.Next())
	}
}

// awaitMailbox waits until an instance listens. It returns false at the end of ctx.
func (l *listener) awaitMailbox(ctx context.Context) bool {
	for ctx.Err() == nil {
		l.mu.Lock()
		n := len(l.mailboxes)
		l.mu.Unlock()
		if n > 0 {
			return true
		}
		select {
		case <-ctx.Done():
		case <-l.some:
		}
	}
	return false
}

// listenAgain makes the listener connect again, because the servers have changed.
func (b *Server) listenAgain() {
	if end := b.listener.again.Load(); end != nil {
		(*end)()
	}
}

// hearing notes whether letters arrive. Once they have, a broken connection is only a reason to say that letters may be
// lost.
func (l *listener) hearing(deaf error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = deaf
}

// hear delivers letters until the connection breaks.
func (b *Server) hear(ctx context.Context, failures *cas.Backoff) error {
	l := &b.listener
	subscribed := b.client.Subscribe(ctx) // to nothing yet, so this sends nothing
	stop := context.AfterFunc(ctx, func() { _ = subscribed.Close() })
	defer func() {
		l.heard.Store(nil)
		l.leave()
		stop()
		_ = subscribed.Close()
	}()
	if err := subscribed.Subscribe(ctx, l.use(subscribed)...); err != nil {
		return err
	}
	asked := false
	for ctx.Err() == nil {
		message, err := subscribed.ReceiveTimeout(ctx, pingAfter)
		var timeout net.Error
		switch {
		case err != nil && errors.As(err, &timeout) && timeout.Timeout() && !asked:
			asked = true
			if err := subscribed.Ping(ctx); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		asked = false
		now := time.Now()
		l.heard.Store(&now)
		switch m := message.(type) {
		case *goredis.Subscription:
			if m.Kind == "subscribe" {
				failures.Reset()
				l.begins(m.Channel)
			}
		case *goredis.Message:
			l.pass(m.Channel, m.Payload)
		}
	}
	return ctx.Err()
}

// use makes a connection the present one, and returns the channels to which it must subscribe. Those of later mailboxes are added by join.
func (l *listener) use(present *goredis.PubSub) (channels []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscriptions = present
	for channel := range l.mailboxes {
		channels = append(channels, channel)
	}
	return channels
}

// leave ends the present connection.
func (l *listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscriptions = nil
	for _, m := range l.mailboxes {
		m.here = false
	}
}

// begins notes that the subscription to a channel is effective.
func (l *listener) begins(channel string) {
	l.telling.Lock()
	defer l.telling.Unlock()
	l.mu.Lock()
	m := l.mailboxes[channel]
	lost := m != nil && m.listens
	if m != nil {
		m.listens, m.here = true, true
	}
	l.deaf = nil
	l.mu.Unlock()
	if lost {
		m.lost()
	}
}

// pass delivers a letter.
func (l *listener) pass(channel, payload string) {
	l.telling.Lock()
	defer l.telling.Unlock()
	l.mu.Lock()
	m := l.mailboxes[channel]
	l.mu.Unlock()
	if m == nil {
		return
	}
	if letter, ok := letter(m.instance, payload); ok {
		m.deliver(letter)
	}
}

// letter is what a swap publishes: its version, and the key with its length before it, and then the body.
func letter(to, payload string) (cas.Letter, bool) {
	version, rest, _ := strings.Cut(payload, " ")
	length, rest, found := strings.Cut(rest, " ")
	base, err := strconv.ParseInt(version, 10, 64)
	n, err2 := strconv.Atoi(length)
	if !found || err != nil || err2 != nil || n < 0 || n > len(rest) {
		return cas.Letter{}, false
	}
	return cas.Letter{To: to, Key: rest[:n], Base: base, Body: []byte(rest[n:])}, true
}
