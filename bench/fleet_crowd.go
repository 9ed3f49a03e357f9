package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lease"
)

const (
	crowdSidecars = 32
	crowdCallers  = 8 // of each
	crowdLength   = 10 * time.Second
)

// crowded is what a crowd of callers got.
type crowded struct {
	grants   []int64 // of each caller
	longest  time.Duration
	passed   int64 // the most grants of others during one wait
	took     time.Duration
	server   time.Duration
	requests int64
}

// crowds measures how alike many callers are served.
func (b *bench) crowds() (string, error) {
	var t strings.Builder
	t.WriteString("## Callers of many sidecars\n\n| server | key | hold (ms) | grants/s | least served caller | most served | longest wait (ms) | most grants of others during one wait | the least that order allows | server, ms a grant | requests a grant |\n|---|---|" + strings.Repeat("--:|", 9) + "\n")
	for _, on := range []func(*bench, int) (*storeServer, error){(*bench).fleetPostgres, (*bench).fleetMariaDB, (*bench).fleetRedis, (*bench).fleetEtcd} {
		if err := b.crowdOn(on, &t); err != nil {
			return "", err
		}
	}
	return t.String(), nil
}

func (b *bench) crowdOn(start func(*bench, int) (*storeServer, error), t *strings.Builder) error {
	server, err := start(b, crowdSidecars)
	if err != nil {
		return err
	}
	defer server.stop()
	if _, err := server.counts(); err != nil {
		return err
	}
	f := &cores{b: b, server: server, n: crowdSidecars}
	defer f.stop()
	f.all = make([]*core, f.n)
	if o := f.each(4, func(i int) (_ time.Duration, err error) {
		f.all[i], err = startCore(b.ctx, place{url: server.url}, i, 0, &f.lost)
		return 0, err
	}); o.failed() > 0 {
		return fmt.Errorf("%s: %v", server.name, o.errors)
	}
	for _, limit := range []int{0, fleetPermits} {
		for _, hold := range []time.Duration{0, 5 * time.Millisecond} {
			req := lease.Request{Key: fmt.Sprintf("crowd:%d:%d", limit, hold), Shared: limit > 0, Limit: limit}
			c, err := f.crowd(req, hold)
			if err != nil {
				return fmt.Errorf("%s: %w", server.name, err)
			}
			what := "exclusive"
			if limit > 0 {
				what = fmt.Sprintf("%d permits", limit)
			}
			total := int64(0)
			for _, n := range c.grants {
				total += n
			}
			row := fmt.Sprintf("| %s | %s | %d | %.0f | %d | %d | %.0f | %d | %d | %.3f | %.2f |", server.name, what, hold.Milliseconds(), float64(total)/c.took.Seconds(),
				slices.Min(c.grants), slices.Max(c.grants), milliseconds(c.longest), c.passed, crowdSidecars*crowdCallers-1,
				milliseconds(c.server)/float64(total), float64(c.requests)/float64(total))
			b.log.Print("crowd: ", row)
			t.WriteString(row + "\n")
		}
	}
	return nil
}

// crowd lets all callers want a key, again and again.
func (f *cores) crowd(req lease.Request, hold time.Duration) (*crowded, error) {
	ctx, cancel := context.WithTimeout(f.b.ctx, fleetPatience)
	defer cancel()
	before, err := f.server.counts()
	if err != nil {
		return nil, err
	}
	cpu, err := f.server.cpu()
	if err != nil {
		return nil, err
	}
	c := &crowded{grants: make([]int64, f.n*crowdCallers)}
	var all atomic.Int64
	var mu sync.Mutex
	var failed error
	var work sync.WaitGroup
	began := time.Now()
	for i := range c.grants {
		work.Go(func() {
			in, err := f.all[i%f.n].another(fmt.Sprintf("caller-%d", i))
			if err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
				return
			}
			for time.Since(began) < crowdLength {
				from, before := time.Now(), all.Load()
				g, err := in.takes(ctx, req)
				waited, passed := time.Since(from), all.Add(1)-1-before
				if err == nil {
					c.grants[i]++
					if hold > 0 {
						time.Sleep(hold)
					}
					err = in.gives(ctx, g)
				}
				mu.Lock()
				c.longest, c.passed = max(c.longest, waited), max(c.passed, passed)
				if err != nil {
					failed = err
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	work.Wait()
	c.took = time.Since(began)
	used, err := f.server.cpu()
	if err != nil {
		return nil, err
	}
	after, err := f.server.counts()
	c.server, c.requests = used-cpu, after.requests-before.requests
	if failed != nil {
		return nil, failed
	}
	return c, err
}
