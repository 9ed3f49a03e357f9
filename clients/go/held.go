package locksidecar

import "context"

// under is the code under a lock, known by its context. Goroutines have no identity.
type under struct {
	lock  *Lock
	outer *under
}

type (
	underKey struct{}
	ownerKey struct{}
)

func underOf(ctx context.Context) *under {
	u, _ := ctx.Value(underKey{}).(*under)
	return u
}

// with is a context of code under a lock.
func with(ctx context.Context, l *Lock) context.Context {
	ctx = context.WithValue(ctx, underKey{}, &under{l, underOf(ctx)})
	if l.reentrant {
		ctx = context.WithValue(ctx, ownerKey{}, l.owner)
	}
	return ctx
}

// Apart returns a context of code that is not under the locks of ctx. It is for work that the code under a lock starts and does not
// wait for: such work may wait for the lock.
func Apart(ctx context.Context) context.Context {
	return context.WithValue(context.WithValue(ctx, underKey{}, (*under)(nil)), ownerKey{}, "")
}

// ownerOf is the owner of the reentrant lock around ctx, or empty.
func ownerOf(ctx context.Context) string {
	owner, _ := ctx.Value(ownerKey{}).(string)
	return owner
}

// refuseSelfWait refuses a call that would wait for a lock of the code that makes it, which would wait for ever. A call that names its
// request may get the same grant, and one with [Wait] ends.
func (c *Client) refuseSelfWait(ctx context.Context, keys []string, o *options) error {
	if o.waitSet || o.named {
		return nil
	}
	for _, key := range keys {
		shares := 0
		for u := underOf(ctx); u != nil; u = u.outer {
			l := u.lock
			if l.key != key || l.session.t.at.name != c.t.at.name || !l.isHeld() {
				continue
			}
			switch mode, most := l.sharing(); {
			case mode != ModeShared && o.reentrant && l.reentrant && o.owner == l.owner:
				return nil // it enters
			case mode != ModeShared || o.body.Mode != ModeShared:
				e := invalid("the code that makes this call holds the lock (token %d), and would wait for itself for ever: "+
					"use Reentrant in both calls to enter it again, Wait to end the wait, or Apart for work that the holder does not wait for", l.token)
				e.Key = key
				return e
			case o.body.Limit != nil && most == *o.body.Limit:
				shares++
			}
		}
		if o.body.Limit != nil && shares >= *o.body.Limit {
			e := invalid("the code that makes this call holds all %d permits of the semaphore, and would wait for itself for ever: release one, or use Wait", shares)
			e.Key = key
			return e
		}
	}
	return nil
}
