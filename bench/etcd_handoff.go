package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
)

// etcdHandOffs measures how long it takes from a release to the grant of a waiter behind another sidecar, in turns with
// etcd's own Mutex and with sidecars on PostgreSQL.
func (b *bench) etcdHandOffs() ([]result, error) {
	const goal, each = 1.3, 40
	o, err := b.onEtcd()
	if err != nil {
		return nil, err
	}
	defer o.stop()
	quorum := &pods{url: o.url, position: o.revision}
	defer quorum.stop()
	if err := quorum.start(b, "etcdhandoff"); err != nil {
		return nil, err
	}
	database, err := b.pods("etcdhandoffpg")
	if err != nil {
		return nil, err
	}
	defer database.stop()
	var onEtcd, mutex, onPostgres, ratio []float64
	for range b.rounds {
		ours, err := b.handOffs(quorum, each)
		if err != nil {
			return nil, fmt.Errorf("on etcd: %w", err)
		}
		var theirs []float64
		text, err := exec.CommandContext(b.ctx, o.peers, "hand-off", o.address, strconv.Itoa(each)).Output()
		if err == nil {
			err = json.Unmarshal(text, &theirs)
		}
		if err != nil {
			return nil, fmt.Errorf("etcd's Mutex: %w", err)
		}
		beside, err := b.handOffs(database, each)
		if err != nil {
			return nil, fmt.Errorf("on PostgreSQL: %w", err)
		}
		b.log.Printf("etcd P6 %d hand-offs: median %.2f ms, p99 %.2f ms; etcd's Mutex %.2f ms, %.2f ms; on PostgreSQL %.2f ms, %.2f ms",
			each, median(ours), p99(ours), median(theirs), p99(theirs), median(beside), p99(beside))
		onEtcd, mutex, onPostgres = append(onEtcd, ours...), append(mutex, theirs...), append(onPostgres, beside...)
		ratio = append(ratio, median(ours)/median(theirs))
	}
	row := func(what, peer string, figure, peers float64) result {
		return result{
			id: "etcd P6", what: "hand-off to a waiter behind another sidecar, " + what, figure: fmt.Sprintf("%.2f ms (of %d)", figure, len(onEtcd)),
			peer: fmt.Sprintf("%s: %.2f ms", peer, peers), ratio: fmt.Sprintf("%.2f of it", figure/peers), less: true, goal: none,
		}
	}
	const own, pg = "etcd's own Mutex", "sidecars on PostgreSQL"
	middle := row("median", own, median(onEtcd), median(mutex))
	middle.score = median(ratio)
	return []result{
		middle.wants(goal),
		row("p99", own, p99(onEtcd), p99(mutex)),
		row("median", pg, median(onEtcd), median(onPostgres)),
		row("p99", pg, p99(onEtcd), p99(onPostgres)),
	}, nil
}

// handOffs returns how long some hand-offs took, in milliseconds. The first one, which is not counted, prepares.
func (b *bench) handOffs(p *pods, times int) ([]float64, error) {
	holder, err := dial(p.a.socket)
	if err != nil {
		return nil, err
	}
	defer holder.close()
	all := make([]float64, 0, times+1)
	for range times + 1 {
		if err := b.ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := holder.acquire(handOffKey, nil); err != nil {
			return nil, err
		}
		ms, err := p.handOff(func() error {
			_, err := holder.release(handOffKey, nil)
			return err
		})
		if err != nil {
			return nil, err
		}
		all = append(all, ms)
	}
	return all[1:], nil
}
