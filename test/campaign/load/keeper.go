package load

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// Keeper is a client of a fault. It has its sidecar keep a key that nobody else wants yet, and writes down all that it does.
type Keeper struct {
	Recorder *history.Recorder
	// Sidecar is where it has its session, Socket its sidecar's.
	Sidecar int
	Socket  string
	Key     string

	calls *conn
	links int
}

func (k *Keeper) session() string {
	return fmt.Sprintf("%s/%s/%d.%d", k.Recorder.Process(), k.Key, k.Sidecar, k.links)
}

// Keep takes the key again and again until its sidecar has given it without the store, and releases it. It reports whether the
// sidecar keeps the key now, as far as a client can know.
func (k *Keeper) Keep(ctx context.Context) bool {
	last := int64(0)
	for ctx.Err() == nil {
		token := k.take(ctx, 0)
		if token == 0 {
			last = 0
			rest(ctx, 20*time.Millisecond)
			continue
		}
		if !k.release(ctx, token) {
			last = 0
			continue
		}
		if last > 0 && token == last+1 {
			return true
		}
		last = token
	}
	return false
}

// Want waits for the key until ctx ends, and releases it.
func (k *Keeper) Want(ctx context.Context) {
	for ctx.Err() == nil {
		if token := k.take(ctx, -1); token > 0 {
			k.release(context.WithoutCancel(ctx), token)
			return
		}
		rest(ctx, 50*time.Millisecond)
	}
}

// Recalls has the keeper keep the key, and another want it elsewhere, so many times or until ctx ends. Then it ends both sessions. Clients of a load
// do so only now and then, and hardly ever when that can be judged.
func Recalls(ctx context.Context, keeper, other *Keeper, times int) {
	defer keeper.Close()
	defer other.Close()
	const uses = 8 // so that keeping pays, although each recall costs: otherwise the sidecar hardly keeps the key
	for range times {
		for range uses {
			if !keeper.Keep(ctx) {
				return
			}
		}
		other.Want(ctx)
	}
}

// Close ends its session.
func (k *Keeper) Close() {
	if k.calls == nil {
		return
	}
	op := k.Recorder.Begin(history.Op{Client: -1, Sidecar: k.Sidecar, Kind: history.Drop, Session: k.session()})
	_ = k.calls.Close()
	k.Recorder.End(op)
	k.calls = nil
	k.links++
}

// take is an acquire: its token, or 0.
func (k *Keeper) take(ctx context.Context, wait int64) int64 {
	if k.calls == nil {
		calls, err := dial(ctx, k.Socket)
		if err != nil {
			return 0
		}
		k.calls = calls
	}
	req := request{Wait: wait}
	op := k.Recorder.Begin(history.Op{Client: -1, Sidecar: k.Sidecar, Kind: history.Acquire, Key: k.Key, Session: k.session(), Wait: wait})
	req.Data.Op = op.InLine()
	sent := history.Now()
	a, err := k.calls.call(ctx, limit(wait), "PUT", lockPath(k.Key), req.String())
	switch {
	case err == nil && a.status == 200 && a.Granted:
		op.Outcome, op.Token, op.Until = history.Granted, a.Token, believe(sent, a)
	case err == nil:
		op = refused(op, a)
	}
	k.Recorder.End(op)
	if err != nil {
		k.Close()
	}
	return op.Token
}

// release reports whether the lock was released.
func (k *Keeper) release(ctx context.Context, token int64) bool {
	if k.calls == nil {
		return false
	}
	op := k.Recorder.Begin(history.Op{Client: -1, Sidecar: k.Sidecar, Kind: history.Release, Key: k.Key, Session: k.session(), Token: token})
	a, err := k.calls.call(ctx, patience, "DELETE", fmt.Sprintf("%s?token=%d", lockPath(k.Key), token), "")
	op.Note = a.note()
	switch {
	case err != nil:
	case a.status == 200:
		op.Outcome = history.Done
	default:
		op.Outcome = gone(a)
	}
	k.Recorder.End(op)
	if err != nil {
		k.Close()
	}
	return op.Outcome == history.Done
}
