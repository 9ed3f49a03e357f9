package sidecar

import (
	"runtime"
	"testing"
)

// TestHeapFloor: a small heap grows to the floor and not beyond; a larger one as Go has it; one that has more than the
// floor alive by less.
func TestHeapFloor(t *testing.T) {
	t.Parallel()
	for live := uint64(0); live < 200<<20; live += 100 << 10 {
		percent := uint64(percentFor(live))
		goal := max(live+live*percent/100, goHeap*percent/100)
		asGo := max(2*live, goHeap)
		if live > heapFloor {
			asGo = live * 7 / 4
		}
		if goal > max(heapFloor, asGo) || goal < asGo {
			t.Fatalf("with %d bytes alive the heap grows to %d, by %d%%", live, goal, percent)
		}
	}
	if percent := percentFor(3 << 20); percent != 300 {
		t.Errorf("with 3 MB alive the heap grows by %d%%", percent)
	}
}

// TestAfterEachCollection: it is told of more than one.
func TestAfterEachCollection(t *testing.T) {
	t.Parallel()
	told := make(chan struct{}, 1)
	afterEachCollection(func() {
		select {
		case told <- struct{}{}:
		default: // of those of other tests
		}
	})
	for range 3 {
		runtime.GC()
		<-told
	}
}
