package lease

import (
	"testing"
	"testing/synctest"
	"time"
)

// A store is swept as long as something of this sidecar may be left in it, also
// when nothing is held here; and then no more.
func TestSweeps(t *testing.T) {
	for name, left := range map[string]func(r *rig){
		"held":     func(r *rig) { r.lock(r.session(), "k") },
		"bind:ttl": func(r *rig) { r.lockTTL("k", time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				time.Sleep(time.Hour)
				if n := r.st.count("Sweep"); n != 0 {
					t.Errorf("%d sweeps without a grant", n)
				}
				left(r)
				time.Sleep(time.Hour)
				if n := r.st.count("Sweep"); n < 2 || n > 7 {
					t.Errorf("an hour took %d sweeps", n)
				}
				time.Sleep(2 * time.Hour)
				before := r.st.count("Sweep")
				time.Sleep(10 * time.Hour)
				if n := r.st.count("Sweep"); n != before {
					t.Errorf("%d sweeps long after the last grant", n-before)
				}
			})
		})
	}
}

// Memory does not keep the bind:ttl locks that nobody released.
func TestSweepForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.lockTTL("k", time.Second)
		time.Sleep(2 * sweepInterval)
		if r.st.count("Sweep") == 0 {
			t.Error("an expired bind:ttl lock was never swept")
		}
	})
}
