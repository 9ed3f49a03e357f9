package mysql_test

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/process"
	"github.com/locksidecar/locksidecar/store"
)

// renewsSoon renews until ctx ends. No renewal takes as long as the shortest TTL.
func (r *rig) renewsSoon(ctx context.Context) (done <-chan struct{}) {
	lease, ended := r.OpenLease(time.Minute), make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			began := time.Now()
			if _, _, err := r.Renew(r.Ctx, []store.LeaseID{lease}); err != nil {
				r.T.Error(err)
			}
			if took := time.Since(began); took > 450*time.Millisecond {
				r.T.Errorf("a renewal took %s", took)
			}
		}
	}()
	return ended
}

// The server still keeps the sessions that an instance had before its network was cut: the one in which it slept, and the one for whose lock it
// waited. It sleeps in new ones, and no renewal waits for that.
// Proves: promise 6
func TestOldSessionsAfterACutNetwork(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	writer := s.ready("writer")
	link, direct := process.NewLink(t, shared.Address), s.url
	s.url = s.At(link.Address)
	old := s.sleeping("one", always)
	link.Hold()
	s.url = direct
	r := s.ready("one")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	renewed := r.renewsSoon(ctx)
	r.listens()
	end()
	<-renewed
	writer.Write("one", 1)
	r.Reads(1)
	link.Cut()
	old.Stop()
}
