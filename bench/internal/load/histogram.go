package load

import (
	"math/bits"
	"time"
)

const (
	// fine is into how many steps each doubling of a time is divided, as a power of 2.
	fine  = 6
	steps = 1 << fine
	// doublings of it: times up to 36 minutes.
	doublings = 36
)

// histogram counts times, each to within 2%: 4,096 workers can each have one.
type histogram [doublings * steps]uint32

// step is where a time is counted.
func step(d time.Duration) int {
	n := uint64(max(d, 0))
	shift := max(bits.Len64(n)-fine-1, 0)
	return min(shift<<fine+int(n>>shift), doublings*steps-1)
}

// middle is the time that stands for all of a step.
func middle(i int) time.Duration {
	shift := max(i>>fine-1, 0)
	return time.Duration(i-shift<<fine)<<shift + time.Duration(1)<<shift/2
}

func (h *histogram) note(d time.Duration) { h[step(d)]++ }

func (h *histogram) add(other *histogram) {
	for i, n := range other {
		h[i] += n
	}
}

func (h *histogram) count() (n int64) {
	for _, c := range h {
		n += int64(c)
	}
	return n
}

// quantile is a time that the given part of all did not exceed; 0 when there is none.
func (h *histogram) quantile(part float64) time.Duration {
	all := h.count()
	seen := int64(0)
	for i, c := range h {
		if seen += int64(c); c > 0 && float64(seen) >= part*float64(all) {
			return middle(i)
		}
	}
	return 0
}
