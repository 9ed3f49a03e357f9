package sidecar

import (
	"log/slog"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
)

const (
	// heapFloor is the size up to which the heap grows without a collection. A busy sidecar has about 3 MB of
	// live objects. By default, Go would collect them 25 times a second.
	heapFloor = 16 << 20
	// goPercent is Go's default growth between two collections, goHeap the least size at which a collection then
	// begins. Both grow with the percentage.
	goPercent = 100
	goHeap    = 4 << 20
	// largePercent is the growth of a heap with more live objects than heapFloor. Such a sidecar holds tens of
	// thousands of locks, which change little, so memory counts more than collections.
	largePercent = 75
)

// keepHeapFloor lets the heap grow to heapFloor. A larger heap grows by Go's default, and a large one by less, so with
// many locks the floor costs no memory. It checks the live heap after each collection. If GOGC is set, it decides instead.
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

// memoryLow reports whether the live memory is more than three quarters of the limit, which is GOMEMLIMIT. Then the collector works ever harder, and a
// container that is not much larger would be killed, with all its locks.
func memoryLow(limit int64, log *slog.Logger) func() bool {
	return liveAbove(limit/4*3, func(now bool, used uint64) {
		if now {
			log.Warn("memory is nearly used up: no locks, sessions and event streams are granted until some is free", "live_bytes", used, "setting", "GOMEMLIMIT", "limit_bytes", limit)
		} else {
			log.Info("memory is free again")
		}
	})
}

// liveAbove reports whether the live memory is above a mark, and calls changed when that changes. Each collection counts anew, and near GOMEMLIMIT
// they follow each other closely.
func liveAbove(mark int64, changed func(now bool, used uint64)) func() bool {
	var above atomic.Bool
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	afterEachCollection(func() {
		metrics.Read(live)
		used := live[0].Value.Uint64() + live[1].Value.Uint64()
		if now := used > uint64(mark); now != above.Swap(now) {
			changed(now, used)
		}
	})
	return above.Load
}

// percentFor is the growth for a number of live bytes. It is a multiple of a step, because each change stops
// the process briefly.
func percentFor(live uint64) int {
	const step = 50
	if live > heapFloor {
		return largePercent
	}
	percent := int(heapFloor*100/max(live, goHeap)) - 100
	return max(percent/step*step, goPercent)
}

// afterEachCollection calls f in the finalizer of an unreferenced object. The finalizer makes the next object
// first. Otherwise a collection during f would be missed.
func afterEachCollection(f func()) {
	type nobodys struct{ _ *byte }
	runtime.SetFinalizer(&nobodys{}, func(*nobodys) {
		afterEachCollection(f)
		f()
	})
}
