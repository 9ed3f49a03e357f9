package attempt

import "time"

// GrantLasts records for how long the store may keep a grant without a renewal.
func (aq *Acquirer) GrantLasts(now time.Time, lasts time.Duration) {
	end := int64(now.Add(lasts).Sub(aq.began))
	for noted := aq.lastEnd.Load(); noted == 0 || end-noted >= int64(time.Minute); noted = aq.lastEnd.Load() {
		// A precision of a minute suffices, so most grants need not write.
		if aq.lastEnd.CompareAndSwap(noted, end) {
			break
		}
	}
}

// LastEnd is when the store keeps none of the sidecar's grants any more, to a minute; zero: it has granted nothing.
func (aq *Acquirer) LastEnd() time.Time {
	if end := aq.lastEnd.Load(); end != 0 {
		return aq.began.Add(time.Duration(end))
	}
	return time.Time{}
}
