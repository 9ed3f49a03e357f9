package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/store/cas"
)

// Post implements [cas.Backend].
func (b *Backend) Post(ctx context.Context, letters []cas.Letter) error {
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

// pingAfter is how long the listener hears nothing before it sends a ping, and then again before it connects anew.
const pingAfter = 2 * time.Second

// pongWithin is how soon a ping must be answered, or the instance does not rely on hearing letters. It does not end the connection.
const pongWithin = 500 * time.Millisecond

// listen delivers the letters to this instance. After each new connection but the first, letters may be lost.
func (b *Backend) listen(ctx context.Context, deliver func(cas.Letter), lost func()) {
	first := true
	var failures cas.Backoff
	for ctx.Err() == nil {
		one, end := context.WithCancel(ctx)
		b.again.Store(&end)
		err := b.hear(one, deliver, func() {
			b.hearing(nil)
			if failures.Reset(); !first {
				lost()
			}
			first = false
		})
		if one.Err() == nil {
			b.hearing(explained(err))
			b.Doubt()
		}
		end()
		cas.Pause(ctx, failures.Next())
	}
}

// listenAgain makes the listener connect again, because the servers have changed.
func (b *Backend) listenAgain() {
	if end := b.again.Load(); end != nil {
		(*end)()
	}
}

// hearing notes whether letters arrive. Once they have, a broken connection is only a reason to say that letters may be
// lost.
func (b *Backend) hearing(deaf error) {
	b.mu.Lock()
	b.listens, b.deaf = b.listens || deaf == nil, deaf
	b.mu.Unlock()
}

// hear delivers letters until the connection breaks. It calls began when the subscription is effective.
func (b *Backend) hear(ctx context.Context, deliver func(cas.Letter), began func()) error {
	subscribed := b.client.Subscribe(ctx, b.channel(b.config.Instance))
	stop := context.AfterFunc(ctx, func() { _ = subscribed.Close() })
	defer func() {
		b.heard.Store(nil)
		stop()
		_ = subscribed.Close()
	}()
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
		b.heard.Store(&now)
		switch m := message.(type) {
		case *goredis.Subscription:
			began()
		case *goredis.Message:
			if l, ok := letter(b.config.Instance, m.Payload); ok {
				deliver(l)
			}
		}
	}
	return ctx.Err()
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
