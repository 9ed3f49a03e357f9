package lease

import (
	"testing"
	"testing/synctest"
	"time"
)

// A sidecar sweeps its store while grants of its own may be left in it, even if it holds no lock.
// Then it stops sweeping.
func TestSweeps(t *testing.T) {
	for name, left := range map[string]func(r *rig){
		"held":     func(r *rig) { r.lock(r.eitherSession(), "k") },
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
					t.Errorf("%d sweeps in an hour", n)
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

// A second Start has no effect.
func TestStartedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.must(r.m.Start(t.Context()))
		r.lock(r.eitherSession(), "k")
		time.Sleep(10 * sweepInterval)
		if n := r.st.count("Sweep"); n > 15 {
			t.Errorf("%d sweeps in 10 intervals", n)
		}
	})
}

// The memory store sweeps bind:ttl locks that were not released.
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
