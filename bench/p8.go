package main

import (
	"fmt"
	"os"
	"time"
)

const mib = 1 << 20

// p8 measures what a sidecar costs that does nothing.
func (b *bench) p8() ([]result, error) {
	const quiet = 10 * time.Second
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	migrating, err := b.sidecar("p8", "STORE_URL="+url)
	if err != nil {
		return nil, err
	}
	migrating.stop() // the schema is current from now on
	var ready []float64
	for range b.rounds {
		p, err := b.sidecar("p8", "STORE_URL="+url)
		if err != nil {
			return nil, err
		}
		ready = append(ready, float64(p.readyAfter)/float64(time.Millisecond))
		b.log.Printf("P8 ready after %.1f ms", ready[len(ready)-1])
		p.stop()
	}
	sidecar, err := b.sidecar("p8", "STORE_URL="+url)
	if err != nil {
		return nil, err
	}
	defer sidecar.stop()
	counter, err := b.counter(url)
	if err != nil {
		return nil, err
	}
	defer counter.close()
	if err := counter.reset(); err != nil {
		return nil, err
	}
	if err := b.rest(quiet); err != nil {
		return nil, err
	}
	statements, _, err := counter.count("")
	if err != nil {
		return nil, err
	}
	rss, anonymous := sidecar.memory()
	b.log.Printf("P8 idle for %s: %d statements; %.1f MiB resident, %.1f MiB anonymous", quiet, statements, float64(rss)/mib, float64(anonymous)/mib)
	file, err := os.Stat(b.binary)
	if err != nil {
		return nil, err
	}
	row := func(what, figure, goal string, reached bool) result {
		return result{id: "P8", what: what, figure: figure, peer: "–", ratio: "–", goal: goal, reached: reached}
	}
	size := func(what string, mebibytes float64, goal string, reached bool) result {
		r := row(what, fmt.Sprintf("%.1f MiB", mebibytes), goal, reached)
		r.score, r.less = mebibytes, true
		return r
	}
	return []result{
		size("idle sidecar, resident memory", float64(rss)/mib, "at most 25 MB", rss <= 25e6),
		size("of it anonymous", float64(anonymous)/mib, "at most 10 MB", anonymous <= 10e6),
		row(fmt.Sprintf("statements in %s without leases", quiet), fmt.Sprint(statements), "0", statements == 0),
		row("ready, on PostgreSQL with a current schema", fmt.Sprintf("%.0f ms", median(ready)), "at most 100 ms", median(ready) <= 100),
		size("size of the binary", float64(file.Size())/mib, "–", true),
	}, nil
}
