package e2e

import (
	"sync"
	"sync/atomic"
	"testing"
)

// register stores the grants that clients got, so that a test sees from outside whether a key has
// two holders. It has no lock, which would put the clients into an order.
type register struct {
	t      testing.TB
	keys   sync.Map // key -> *noted
	grants atomic.Int64
}

type noted struct {
	holder, token atomic.Int64
}

func (r *register) of(key string) *noted {
	n, _ := r.keys.LoadOrStore(key, &noted{})
	return n.(*noted)
}

// granted adds a grant. Clients have numbers from 1.
func (r *register) granted(key string, client, token int64) {
	n := r.of(key)
	if !n.holder.CompareAndSwap(0, client) {
		r.t.Errorf("%s is granted to client %d while client %d holds it", key, client, n.holder.Load())
	}
	if before := n.token.Swap(token); before >= token {
		r.t.Errorf("%s: token %d after %d", key, token, before)
	}
	r.grants.Add(1)
}

// ending notes that a client is about to release a key.
func (r *register) ending(key string, client int64) {
	r.of(key).holder.CompareAndSwap(client, 0)
}
