package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// readKey is what readers share.
const readKey = "bench:read"

// reading is a reader's grant.
type reading struct {
	token          int64
	granted, ended time.Time // by the store; and when the release was answered
}

// writing is a writer's grant, as its client saw it.
type writing struct {
	token          int64
	asked, granted time.Time
}

func (w *writing) wait() time.Duration { return w.granted.Sub(w.asked) }

// writers measures how long an exclusive call waits among readers that come and go.
func (b *bench) writers(h *hotKeys, _ *counter) (results []result, err error) {
	const readers = 200
	sockets := []string{h.sidecars[0].socket, h.sidecars[1].socket}
	conns, err := dialMany(sockets, readers+len(sockets))
	defer closeAll(conns)
	if err != nil {
		return nil, err
	}
	for _, hold := range []time.Duration{500 * time.Millisecond, 50 * time.Millisecond} {
		writings, readings, err := b.among(conns[:readers], conns[readers:], hold)
		if err != nil {
			return nil, err
		}
		results = append(results, b.waits(writings, readings, hold))
	}
	return results, nil
}

// among has writers come, one after the other, to a key that readers share again and again.
func (b *bench) among(readers, writers []*conn, hold time.Duration) (writings []writing, readings [][]reading, err error) {
	const eachRound = 20
	var over atomic.Bool
	readings = make([][]reading, len(readers))
	done := make(chan error, 1)
	go func() {
		done <- onEach(readers, func(c *conn, i int) (err error) {
			time.Sleep(rand.N(hold)) // they come and go at different times
			readings[i], err = reads(c, hold, &over)
			return err
		})
	}()
	for i := 0; i < eachRound*b.rounds && err == nil; i++ {
		if err = b.rest(hold + rand.N(hold)); err != nil {
			break
		}
		var w writing
		w, err = writes(writers[i%len(writers)])
		writings = append(writings, w)
	}
	over.Store(true)
	if failure := <-done; failure != nil {
		err = failure
	}
	return writings, readings, err
}

// reads shares the key again and again, and holds it for a time.
func reads(c *conn, hold time.Duration, over *atomic.Bool) (seen []reading, err error) {
	request := make([]byte, 0, 256)
	for !over.Load() {
		var r reading
		if request, err = c.call(request, "PUT", readKey, []byte(`{"mode":"shared","wait_ms":20000}`), 200); err != nil {
			return seen, err
		}
		if r.token, err = c.tokenNumber(); err != nil {
			return seen, err
		}
		if r.granted, err = c.acquiredAt(); err != nil {
			return seen, err
		}
		time.Sleep(hold/2 + rand.N(hold)) // on average the hold
		if request, err = c.release(readKey, request); err != nil {
			return seen, err
		}
		r.ended = time.Now()
		seen = append(seen, r)
	}
	return seen, nil
}

// acquiredAt is the time of the grant in the last answer. The clock is this machine's.
func (c *conn) acquiredAt() (time.Time, error) {
	_, after, _ := bytes.Cut(c.body, []byte(`"acquired_at":"`))
	text, _, _ := bytes.Cut(after, []byte(`"`))
	return time.Parse(time.RFC3339Nano, string(text))
}

// writes waits for the key, and releases it at once.
func writes(c *conn) (w writing, err error) {
	w.asked = time.Now()
	request, err := c.call(nil, "PUT", readKey, []byte(`{"wait_ms":20000}`), 200)
	if err != nil {
		return w, err
	}
	w.granted = time.Now()
	if w.token, err = c.tokenNumber(); err != nil {
		return w, err
	}
	_, err = c.release(readKey, request)
	return w, err
}

// waits tells how long writers waited, beside how long the readers had the key for which they waited.
func (b *bench) waits(writings []writing, readings [][]reading, hold time.Duration) result {
	var holds, shares []float64
	for i := range writings {
		w := &writings[i]
		holds = append(holds, float64(w.wait())/float64(hold))
		shares = append(shares, float64(w.wait())/float64(max(generation(w, readings), w.wait()/100)))
	}
	grants := 0
	for _, all := range readings {
		grants += len(all)
	}
	told := fmt.Sprintf("median %.2f, p99 %.2f, longest %.2f holds (of %d)", median(holds), p99(holds), slices.Max(holds), len(writings))
	ratio := p99(shares)
	b.log.Printf("P11c %d readers, which got %d grants and held for %s: waits of writers: %s; of the generation before them: median %.2f, p99 %.2f, longest %.2f",
		len(readings), grants, hold, told, median(shares), ratio, slices.Max(shares))
	return result{
		id: "P11c", what: fmt.Sprintf("wait of a writer among %d readers that hold for %s on average", len(readings), hold),
		figure: told, peer: "the longest reader before each", ratio: fmt.Sprintf("p99 %.2f of it", ratio),
		score: ratio, less: true,
	}.wants(1)
}

// generation is how long the key was had by the one of the readers before a writer that had it longest.
func generation(w *writing, readings [][]reading) (longest time.Duration) {
	for _, all := range readings {
		for _, r := range all {
			if r.token < w.token && r.ended.After(w.asked) {
				longest = max(longest, r.ended.Sub(r.granted))
			}
		}
	}
	return longest
}
