package sidecar

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

const (
	// heapFloor is the size up to which the heap may grow before it is collected. A busy
	// sidecar has about 3 MB alive, which Go by itself would collect 25 times a second.
	heapFloor = 16 << 20
	// goPercent is by how much a heap grows between two collections as Go has it, and
	// goHeap the least size at which it begins then. Both grow with the percentage.
	goPercent = 100
	goHeap    = 4 << 20
)

// keepHeapFloor lets the heap grow to heapFloor, and a larger one as Go has it: who holds
// many locks pays nothing for the floor, and an idle sidecar does not come to it. After
// each collection it looks at what is left alive. GOGC, if it is set, decides instead.
func keepHeapFloor(lookup func(string) (string, bool)) {
	if _, set := lookup("GOGC"); !set {
		startHeapFloor()
	}
}

var startHeapFloor = sync.OnceFunc(func() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	now := goPercent
	adjust := func() {
		metrics.Read(live)
		if percent := percentFor(live[0].Value.Uint64()); percent != now {
			now = percent
			debug.SetGCPercent(percent)
		}
	}
	adjust()
	afterEachCollection(adjust)
})

// percentFor is by how much a heap may grow of which so many bytes are alive. It changes
// in steps, for each change stops the process for a moment.
func percentFor(live uint64) int {
	const step = 50
	percent := int(heapFloor*100/max(live, goHeap)) - 100
	return max(percent/step*step, goPercent)
}

// afterEachCollection calls f by the finalizer of an object that nobody refers to: it runs
// once the object is collected, and makes the next one. First, or a collection that comes
// while f runs would be missed.
func afterEachCollection(f func()) {
	type nobodys struct{ _ *byte }
	runtime.SetFinalizer(&nobodys{}, func(*nobodys) {
		afterEachCollection(f)
		f()
	})
}
