package fault

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/test/campaign/history"
	"github.com/locksidecar/locksidecar/test/campaign/world"
)

// Event is a fault of a plan.
type Event struct {
	// At is when it comes, Length how long it lasts.
	At, Length time.Duration
	Kind       Kind
	// Target is which sidecar or app it strikes.
	Target int
	seed   uint64
}

func (e Event) String() string {
	if e.Kind.part == server {
		return e.Kind.Name
	}
	return e.Kind.Name + " " + e.whom()
}

func (e Event) whom() string { return fmt.Sprintf("%s%d", e.Kind.part, e.Target) }

func (e Event) end() time.Duration { return e.At + e.Length }

// Plan is what strikes when, in order.
type Plan []Event

func (p Plan) String() string {
	var b strings.Builder
	for _, e := range p {
		fmt.Fprintf(&b, "%7.1fs to %7.1fs  %s\n", e.At.Seconds(), e.end().Seconds(), e)
	}
	return b.String()
}

// Terms say what a plan is made of.
type Terms struct {
	Seed uint64
	// Length is for how long faults strike; Brief, that each kind strikes once, in as little
	// time as that takes.
	Length time.Duration
	Brief  bool
	Kinds  []Kind
	// Sidecars and Apps are the numbers of those that faults can strike.
	Sidecars, Apps int
	// Keepers are the sidecars that keep keys: the [KeeperKinds] strike these.
	Keepers []int
	// Store is what the world runs on.
	Store world.Engine
	// Pooled says that the sidecars go through a pooler. The plan is the same.
	Pooled bool
}

const (
	// calm is without faults, at the beginning.
	calm = 2 * time.Second
	// pause is the longest time between the end of a fault and the next one, if they do not overlap.
	pause = 3 * time.Second
	// overlapping: one fault in this many overlaps with the next.
	overlapping = 3
)

// Make makes the plan that follows from its terms. Kinds are dealt like cards, so that
// each comes before one comes more often than its weight says.
func Make(t Terms) (plan Plan) {
	rng := rand.New(rand.NewPCG(t.Seed, 0))
	if t.Brief {
		return brief(rng, t)
	}
	var deck []Kind
	at := calm
	for {
		if len(deck) == 0 {
			deck = shuffled(rng, t.Kinds)
		}
		e := t.event(rng, deck[0], 1)
		deck = deck[1:]
		at = max(at, plan.ends(0)+between(rng, pause/3, pause))
		if rng.IntN(overlapping) == 0 {
			at = plan.overlap(e, at)
		}
		if e.At = at; e.end() > t.Length {
			return plan
		}
		plan = append(plan, e)
	}
}

// brief makes a plan in two rows: in one the servers of the store are struck, in the other what is
// around them.
func brief(rng *rand.Rand, t Terms) (plan Plan) {
	const share, gap = 3, pause / 6
	ends := map[bool]time.Duration{true: calm, false: calm}
	dealt := make(map[string]bool)
	for _, k := range shuffled(rng, t.Kinds) {
		if dealt[k.Name] {
			continue
		}
		dealt[k.Name] = true
		e := t.event(rng, k, share)
		row := k.part == server
		e.At = ends[row] + between(rng, gap, 2*gap)
		ends[row] = e.end()
		plan = append(plan, e)
	}
	slices.SortStableFunc(plan, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return plan
}

// event is a fault of that kind, at a time that is not set. It lasts for as long as it
// must, and at most for one of so many shares of what it may last beyond that.
func (t Terms) event(rng *rand.Rand, k Kind, share int) Event {
	e := Event{Kind: k, Length: between(rng, k.least, k.least+(k.most-k.least)/time.Duration(share)), seed: rng.Uint64()}
	switch k.part {
	case sidecar:
		e.Target = rng.IntN(t.Sidecars)
		if k.keeper {
			e.Target = t.Keepers[rng.IntN(len(t.Keepers))]
		}
	case app:
		e.Target = rng.IntN(t.Apps)
	}
	return e
}

// Length is the time at which the last fault is healed.
func (p Plan) Length() time.Duration { return p.ends(0) }

// ends is the time from which on at most left faults of the plan strike.
func (p Plan) ends(left int) time.Duration {
	all := make([]time.Duration, len(p), len(p)+left+1)
	for i, e := range p {
		all[i] = e.end()
	}
	all = append(all, make([]time.Duration, left+1)...)
	slices.Sort(all)
	return all[len(all)-1-left]
}

// overlap is when a fault can come while the last one strikes, if only that one does, or
// else at.
func (p Plan) overlap(e Event, at time.Duration) time.Duration {
	if len(p) == 0 {
		return at
	}
	last := p[len(p)-1]
	early := max(last.At+last.Length/2, p.ends(1))
	for _, other := range p {
		if other.end() > early && other.whom() == e.whom() {
			return at
		}
	}
	return early
}

func shuffled(rng *rand.Rand, kinds []Kind) (deck []Kind) {
	for _, k := range kinds {
		for range k.weight {
			deck = append(deck, k)
		}
	}
	rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	return deck
}

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)+1)).Round(time.Millisecond)
}

// Outcome is what became of an event.
type Outcome struct {
	Event
	Bites int
	Err   error
}

// Run carries a plan out, and tells of each event when it is healed. All are healed when
// it returns. When ctx ends, no more begin.
func Run(ctx context.Context, scene Scene, plan Plan, tell func(Outcome)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	struck := make(map[string]*sync.Mutex) // an earlier fault may take longer than planned
	for _, e := range plan {
		struck[e.whom()] = &sync.Mutex{}
	}
	began := time.Now()
	for _, e := range plan {
		select {
		case <-ctx.Done():
			return
		case <-time.After(e.At - time.Since(began)):
		}
		wg.Go(func() {
			struck[e.whom()].Lock()
			defer struck[e.whom()].Unlock()
			tell(e.carryOut(ctx, scene))
		})
	}
}

func (e Event) carryOut(ctx context.Context, scene Scene) Outcome {
	op := scene.Recorder.Begin(history.Op{Kind: history.Fault, Sidecar: -1, Note: e.String()})
	if e.Kind.forgets {
		forgets := scene.Recorder.Begin(history.Op{Kind: history.Forgets, Sidecar: -1})
		defer scene.Recorder.End(forgets)
	}
	s := &strike{ctx: ctx, Scene: scene, Event: e, rng: rand.New(rand.NewPCG(e.seed, 0))}
	bites, err := e.Kind.strike(s)
	scene.Recorder.End(op)
	return Outcome{Event: e, Bites: bites, Err: err}
}
