package lease

import (
	"context"

	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
)

// skipped ends an attempt that needs no lock any more: the holder has done what was to
// be done. The store remembers the attempt until it is told that this was heard.
func (b *attempt) skipped(ans store.Answer) {
	if _, first := b.close(&types.SkippedError{Key: b.req.Key, Result: ans.Result}); !first {
		return
	}
	b.aq.heldCache.Drop(b.req.Key)
	b.inFlight.Add(1)
	b.aq.forgetWait(b.tr.Carry(context.Background()), b.ref(), b.leaseLives, b.inFlight.Done)
	b.end()
}
