package signal

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/clock"
	"github.com/locksidecar/locksidecar/lease/internal/lanes"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// The pauses between two reads of a key that is being broken grow.
const (
	breakPauseMin = 10 * time.Millisecond
	breakPauseMax = 250 * time.Millisecond
)

// Send sends a signal. It reports false if the key is not held, or not under the signal's token.
func (sg *Signals) Send(ctx context.Context, sig store.Signal) (held bool, err error) {
	standing, err := lanes.Submit(ctx, sg.lanes.Signals, sig)
	if err == nil && standing == store.ClaimRowLocked {
		err = types.RowLocked("signal")
	}
	if err != nil {
		return false, err
	}
	sg.cache.Drop(sig.Key)
	return standing == store.Holds, nil
}

// AwaitOver waits until the grant is over. For a shared lock this is the grant under the token, or with 0
// all grants in was. A lock without a session was already ended by the store. Otherwise the holder's
// sidecar is notified soon, or with its next renewal.
func (sg *Signals) AwaitOver(ctx context.Context, was store.Lock, token int64) error {
	asked := was.Shared || was.Holder.Renewed
	for pause := breakPauseMin; ; pause = min(2*pause, breakPauseMax) {
		if asked || pause > breakPauseMin {
			if err := clock.Rest(ctx, pause); err != nil {
				return errors.Join(types.ErrCallerLeft, err)
			}
		}
		over, err := sg.isOver(ctx, was, token)
		switch {
		case err != nil:
			return err
		case over:
			sg.cache.Drop(was.Key)
			return nil
		}
	}
}

func (sg *Signals) isOver(ctx context.Context, was store.Lock, token int64) (bool, error) {
	if was.Shared && token != 0 { // a read may not show this share
		v, err := lanes.Submit(ctx, sg.lanes.Amends, store.Change{Claim: store.Claim{Key: was.Key, Token: token}})
		return v.Status != store.Holds && v.Status != store.OtherSession, types.Judged("amend", v.Status, err)
	}
	lock, err := lanes.Submit(ctx, sg.lanes.Reads, was.Key)
	if err != nil {
		return false, err
	}
	if !was.Shared {
		return !lock.Held || !store.OfGrant(lock.Token, was.Token), nil
	}
	newest := was.Token
	for _, share := range was.Holders {
		newest = max(newest, share.Token)
	}
	return !lock.Held || lock.Token > newest, nil
}
