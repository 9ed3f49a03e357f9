package postgres

import (
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/locksidecar/locksidecar/store"
)

// What happens to keys that somebody watches is told after the commit. Statements that
// grant or end grants say whether the key is watched; of all other keys nothing is told.

// acquired tells that a key was granted.
func (o *operation) acquired(k keyName, token zeronull.Int8) {
	o.happened(k, store.Event{Kind: store.EventAcquired, Token: int64(token)})
}

// ended tells that a grant came to an end: as how says, or, when that is nil, because
// its lease was buried. Without a token there is nothing to tell.
func (o *operation) ended(k keyName, token zeronull.Int8, how *store.Event) {
	if token == 0 {
		return
	}
	e := store.Event{Kind: store.EventExpired}
	if how != nil {
		e = *how
	}
	e.Token = int64(token)
	o.happened(k, e)
}

func (o *operation) happened(k keyName, e store.Event) {
	e.Key = k.key
	o.event(k.namespace, e)
}
