package cas

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/internal/fair"
	"github.com/locksidecar/locksidecar/store/internal/gather"
	"github.com/locksidecar/locksidecar/store/internal/instances"
)

// Server is what the views of a process share of a backend.
type Server interface {
	// Start and Stop are those of a [store.Space].
	Start(ctx context.Context) error
	Stop()
	// View makes the backend of an instance, which is started and stopped by itself, while the server runs.
	View(instance string) Backend
}

// Space implements [store.Space].
type Space struct {
	Server
	cfg      Config
	quiet    QuietTime
	cache    *lru.Cache[string, *remembered]
	renewals *gather.Lane[store.LeaseID, extended] // nil: each view renews alone
	views    instances.Running
	places   *fair.Places[user] // nil: the server has room for all requests
	patience time.Duration      // for a place
}

var _ store.Space = (*Space)(nil)

// renewTogether is for how long the renewal of one of several views waits for those of the others, which are due at the same time. A lone view's
// does not wait.
const renewTogether = 2 * time.Millisecond

// NewSpace makes a space.
func NewSpace(server Server, cfg Config) *Space {
	cfg.complete()
	s := &Space{Server: server, cfg: cfg, cache: must(lru.New[string, *remembered](cachedRecords))}
	if few, ok := server.(limited); ok {
		s.places, s.patience = fair.New[user](few.Connections()), few.Patience()
	}
	if shared, ok := server.(renewer); ok {
		s.renewals = gather.New(s.renewTogether, func(ctx context.Context, leases []store.LeaseID) (extended, error) {
			ids, history, err := shared.Renew(ctx, leases)
			e := extended{make(map[store.LeaseID]struct{}, len(ids)), history}
			for _, id := range ids {
				e.leases[id] = struct{}{}
			}
			return e, err
		})
	}
	return s
}

// renewer is a server that renews leases of several instances by one request, as [Backend].Renew does. The others renew those of each view alone.
type renewer interface {
	Renew(ctx context.Context, leases []store.LeaseID) ([]store.LeaseID, store.History, error)
}

// extended is the answer to a renewal that views share.
type extended struct {
	leases  map[store.LeaseID]struct{}
	history store.History
}

func (s *Space) renewTogether() time.Duration {
	if s.views.Count() < 2 {
		return 0
	}
	return renewTogether
}

// View implements [store.Space].
func (s *Space) View(id store.Identity) store.Store { return s.open(s.Server.View(id.Instance), id) }

// Quiet is the rest of the quiet time as far as a view or the server knows, or 0.
func (s *Space) Quiet() time.Duration {
	left := s.quiet.Left()
	if q, ok := s.Server.(store.Quieter); ok {
		left = max(left, q.Quiet())
	}
	return left
}
