package model

// rotate compares a lease with what the sidecar knows, after a failover (lease/reconcile.go),
// and puts what is known under a fresh lease (lease/internal/reconcile/rotate.go). The old one is revoked with
// what is left under it. An operation on its way keeps the old lease: then rotate is tried
// again.
func (s side) rotate(l leaseID) {
	if !s.db.leases[l].old || !s.on(Rotation) {
		return
	}
	d, me := &s.db, attemptID(s.who+1)
	if s.phase == held && s.heldUnder == l && (d.holder != l || d.token != s.token) {
		s.over()
	}
	if s.phase != idle && s.phase != held && s.phase != queued || s.ops[asks].kind != nothing || s.ops[gives].kind != nothing {
		return
	}
	for slot := range s.leases {
		fresh := idOf(s.who, slot)
		if s.leases[slot].state != unused || !s.forgetLease(fresh) {
			continue
		}
		s.leases[slot] = belief{trusted, s.trustFor(0)}
		d.leases[fresh] = leaseRow{there: true, left: s.TTL}
		if s.phase != idle {
			s.heldUnder = fresh
			if d.holder == l && (s.phase == held || d.grant == me) {
				d.holder = fresh
			}
			for n := range d.queue {
				if w := &d.queue[n]; w.grant == me && w.lease == l && s.phase == queued {
					w.lease = fresh
				}
			}
		}
		s.lose(l)
		return
	}
}
