package lease

import (
	"errors"

	"github.com/locksidecar/locksidecar/lease/internal/types"
)

// enter enters the lock that the call's owner has got since it asked.
func (c *call) enter() (types.Grant, bool) {
	if !c.req.Reentrant {
		return types.Grant{}, false
	}
	waited := c.aq.clk.Now().Sub(c.began) // before what is left of the lock is reckoned
	g, ok := c.s.enter(c.req)
	g.Waited = waited
	return g, ok
}

// enterInstead enters when all that a call was told is that the key is held: by its
// owner, perhaps, who got it in this moment.
func (c *call) enterInstead(err error) (types.Grant, bool) {
	if _, held := errors.AsType[*types.HeldError](err); !held {
		return types.Grant{}, false
	}
	return c.enter()
}
