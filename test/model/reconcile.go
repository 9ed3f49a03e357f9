package model

// reconcile compares what is held under a lease with what the sidecar knows, after a failover
// (lease/reconcile.go). It waits until no answer is on its way, where the sidecar waits for
// so long that there can be none.
func (s side) reconcile(l leaseID) {
	row := &s.db.leases[l]
	if !row.old || !s.on(Reconcile) {
		return
	}
	if s.phase == held && s.heldUnder == l && (s.db.holder != l || s.db.token != s.token) {
		s.over()
	}
	lane, ok := s.room()
	if !ok || s.phase != idle && s.phase != held && s.phase != queued || s.ops[asks].kind != nothing || s.ops[gives].kind != nothing {
		return
	}
	me := attemptID(s.who + 1)
	s.db.drop(func(w waiter) bool { return w.lease == l && (w.grant != me || s.phase != queued) })
	if s.db.holder == l && (s.phase == idle || s.phase == queued && s.db.grant != me) {
		s.start(lane, op{kind: release, step: atFree, lease: l, token: s.db.token, deaf: true})
		return
	}
	row.old = s.db.holder == l && s.phase == queued // granted, and not known yet
}
