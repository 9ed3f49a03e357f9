package lease

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lease/internal/observe"
	"github.com/locksidecar/locksidecar/store"
)

// counts collects the metrics of a manager. A gauge must not be below zero.
type counts struct {
	t  tester
	mu sync.Mutex

	acquired, released, cached, sessions map[string]int
	waits                                map[string]int
	ended                                []endedHold
	handOffs                             []time.Duration
	onHandOff                            func() // runs before the call returns
	renewed, lost, failed                int
	keptGrants                           int
	recalls                              map[bool]int  // by whether keeping had paid
	waited                               time.Duration // by the last acquire
	state                                func() observe.State
	waiting                              sync.Mutex // a test locks it to stop calls that are about to wait
}

type endedHold struct {
	key, reason string
	held        time.Duration
}

func newCounts(t tester) *counts {
	none := func() map[string]int { return map[string]int{} }
	return &counts{t: t, acquired: none(), released: none(), cached: none(), sessions: none(), waits: none(), recalls: map[bool]int{}}
}

func (ta *counts) sum(of map[string]int) (sum int) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	for n := range maps.Values(of) {
		sum += n
	}
	return sum
}

// take returns the counters of a map in order, and resets them.
func (ta *counts) take(of map[string]int) (words []string) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	for _, word := range slices.Sorted(maps.Keys(of)) {
		words = append(words, slices.Repeat([]string{word}, of[word])...)
	}
	clear(of)
	return words
}

// told checks that each of so many acquires had one result.
func (ta *counts) told(acquires int) {
	ta.t.Helper()
	if n := ta.sum(ta.acquired); n != acquires {
		ta.t.Errorf("%d acquires, %d results", acquires, n)
	}
}

// renewals returns how many leases were renewed, were lost, and had a failed renewal.
func (ta *counts) renewals() [3]int {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	return [3]int{ta.renewed, ta.lost, ta.failed}
}

// delays returns the durations of the hand-offs.
func (ta *counts) delays() []time.Duration {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	return slices.Clone(ta.handOffs)
}

func (ta *counts) Acquired(_ context.Context, key string, _ bool, result string, waited time.Duration) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.acquired[key+" "+result]++
	ta.waited = waited
}

func (ta *counts) gauge(what string, of map[string]int, key string, change int) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	if of[key] += change; of[key] < 0 || change != 1 && change != -1 {
		ta.t.Errorf("%s of %q: %d", what, key, of[key])
	}
}

func (ta *counts) Waits(key string, change int) {
	ta.waiting.Lock()
	defer ta.waiting.Unlock()
	ta.gauge("waits", ta.waits, key, change)
}

func (ta *counts) Ended(_ context.Context, key, reason string, held time.Duration) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.ended = append(ta.ended, endedHold{key, reason, held})
	if held < 0 {
		ta.t.Errorf("%q was held for %s", key, held)
	}
}

func (ta *counts) Releases(key, result string) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.released[key+" "+result]++
}

func (ta *counts) HandedOff(_ context.Context, took time.Duration) {
	if ta.onHandOff != nil {
		ta.onHandOff()
	}
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.handOffs = append(ta.handOffs, took)
}

func (ta *counts) Cached(kind string) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.cached[kind]++
}

func (ta *counts) KeptGranted() {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.keptGrants++
}

func (ta *counts) Recalled(hadPaid bool) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.recalls[hadPaid]++
}

func (ta *counts) Renewed(_ time.Duration, renewed, lost, failed int) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.renewed, ta.lost, ta.failed = ta.renewed+renewed, ta.lost+lost, ta.failed+failed
}

func (ta *counts) SessionEnded(reason string) {
	ta.mu.Lock()
	defer ta.mu.Unlock()
	ta.sessions[reason]++
}

func (ta *counts) Observe(state func() observe.State) { ta.state = state }

func (*counts) ObserveFleet(func() (store.Stats, bool)) {}

var _ observe.Recorder = (*counts)(nil)
