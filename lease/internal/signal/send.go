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

// AwaitOver waits until the key's grant is over. If nobody needs to be asked, the store has ended it. Else
// the holder's sidecar learns of it in a moment, or with its next renewal.
func (sg *Signals) AwaitOver(ctx context.Context, was store.Lock) error {
	asked := was.Holder.Renewed
	for pause := breakPauseMin; ; pause = min(2*pause, breakPauseMax) {
		if asked || pause > breakPauseMin {
			if err := clock.Rest(ctx, pause); err != nil {
				return errors.Join(types.ErrCallerLeft, err)
			}
		}
		lock, err := lanes.Submit(ctx, sg.lanes.Reads, was.Key)
		switch {
		case err != nil:
			return err
		case !lock.Held || !store.OfGrant(lock.Token, was.Token):
			sg.cache.Drop(was.Key)
			return nil
		}
	}
}
