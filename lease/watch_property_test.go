package lease

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/locksidecar/locksidecar/lease/internal/holdings"
	"github.com/locksidecar/locksidecar/lease/internal/types"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// opening is a stream of a property test, from its call of Watch.
type opening struct {
	key   string
	leave context.CancelFunc
	done  chan struct{}
	err   error
	*watcher
}

// watching is a sidecar with streams on a store that fails. The app of another sidecar locks the
// watched keys.
type watching struct {
	t       *rapid.T
	r, far  *rig
	s       *holdings.Session
	held    map[string]types.Grant
	streams []*opening
}

func (w *watching) key() string { return rapid.SampledFrom([]string{"a", "b"}).Draw(w.t, "key") }

func (w *watching) open() {
	ctx, leave := context.WithCancel(context.Background())
	o := &opening{key: w.key(), leave: leave, done: make(chan struct{}), watcher: &watcher{t: w.t}}
	w.streams = append(w.streams, o)
	go func() {
		defer close(o.done)
		o.view, o.stop, o.err = w.r.m.Watch(ctx, nil, o.key, o.hear)
	}()
}

// end ends a stream, or a call that waits for its stream.
func (w *watching) end() {
	if len(w.streams) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.streams)-1).Draw(w.t, "stream")
	w.streams[i].end()
	w.streams = slices.Delete(w.streams, i, i+1)
}

func (o *opening) end() {
	o.leave()
	<-o.done
	if o.err == nil {
		o.stop()
	}
}

// fail breaks an operation, or loses the lease of the watches.
func (w *watching) fail() {
	op := rapid.SampledFrom([]string{"Watch", "Unwatch", "Get", "OpenLeases", "Renew", "lease"}).Draw(w.t, "operation")
	if l := w.r.m.leases.Get(w.r.m.cfg.TTL); op == "lease" && l != nil {
		w.r.m.leases.Lose(l, types.LostStore)
		return
	}
	ms := rapid.SampledFrom([]int{0, 1, 700, 6000})
	f := fault{times: rapid.IntRange(0, 2).Draw(w.t, "times")}
	f.before = time.Duration(ms.Draw(w.t, "before")) * time.Millisecond
	f.after = time.Duration(ms.Draw(w.t, "after")) * time.Millisecond
	f.refuse, f.forget = rapid.Bool().Draw(w.t, "refuse"), rapid.Bool().Draw(w.t, "forget")
	w.r.st.set(op, f)
}

// turn locks a key, or releases it.
func (w *watching) turn(key string) {
	if g, ok := w.held[key]; ok {
		w.far.release(w.s, g)
		delete(w.held, key)
		return
	}
	w.held[key] = w.far.lock(w.s, key)
}

func (w *watching) act() {
	switch rapid.IntRange(0, 6).Draw(w.t, "action") {
	case 0, 1:
		w.open()
	case 2:
		w.end()
	case 3:
		w.fail()
	case 4:
		w.r.st.lift(everyOp...)
	case 5:
		w.turn(w.key())
	}
	if rapid.Bool().Draw(w.t, "wait") {
		time.Sleep(time.Duration(rapid.SampledFrom([]int{0, 1, 100, 700, 5000}).Draw(w.t, "sleep")) * time.Millisecond)
		synctest.Wait()
	}
}

// judge repairs the store. Then each opened stream has begun or was refused, and shows the state of
// its key.
func (w *watching) judge() {
	w.r.st.lift(everyOp...)
	time.Sleep(30 * time.Second)
	synctest.Wait()
	for _, o := range w.streams {
		select {
		case <-o.done:
		default:
			w.t.Fatalf("a stream of %q does not begin", o.key)
		}
		if o.err != nil {
			continue
		}
		o.mu.Lock()
		held := o.view.Held
		for _, e := range o.heard {
			held = e.Kind == acquired || e.Kind == stopping
		}
		o.heard = nil
		o.mu.Unlock()
		if _, is := w.held[o.key]; is != held {
			w.t.Fatalf("a stream of %q shows %v, the state is %v", o.key, held, is)
		}
	}
	for _, key := range []string{"a", "b"} {
		kind := map[bool]store.EventKind{true: released, false: acquired}
		_, is := w.held[key]
		w.turn(key)
		for _, o := range w.streams {
			if o.key == key && o.err == nil {
				o.want(kind[is]) // pushed, without a read
			}
		}
	}
	for len(w.streams) > 0 {
		w.streams[0].end()
		w.streams = w.streams[1:]
	}
	synctest.Wait()
	w.r.nothingRemembered()
}

// Streams come and go while the store fails. Each stream begins or is refused, and shows the state
// of its key.
// Proves: promise 16, trap stream in an outage
func TestWatchProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failed any
		synctest.Test(t, func(*testing.T) {
			space := memory.NewSpace()
			w := &watching{t: rt, r: newRigOn(rt, space, "a"), far: newRigOn(rt, space, "b"), held: map[string]types.Grant{}}
			w.s = w.far.eitherSession()
			defer func() {
				failed = recover() // rapid stops a run by a panic
				for _, o := range w.streams {
					o.end()
				}
				w.r.m.Stop()
				w.far.m.Stop()
			}()
			for range rapid.IntRange(5, 40).Draw(rt, "steps") {
				w.act()
			}
			w.judge()
		})
		if failed != nil {
			panic(failed)
		}
	})
}
