package main

import (
	"fmt"
	"log"
	"net"

	"github.com/valyala/fasthttp"
)

// p1 measures acquire and release on memory:// against an echo on the same
// server library and kind of socket: a pair is two requests, so half the echo's
// rate is what could be reached if locking cost nothing.
func (b *bench) p1() ([]result, error) {
	const connections, goal = 64, 0.70
	sidecar, err := b.sidecar("p1", "STORE_URL=memory://")
	if err != nil {
		return nil, err
	}
	defer sidecar.stop()
	echo, err := b.echo()
	if err != nil {
		return nil, err
	}
	defer echo.stop()
	least, err := b.floor("memory", "")
	if err != nil {
		return nil, err
	}
	defer least.stop()
	pair, err := b.loader("pair", connections, sidecar)
	if err != nil {
		return nil, err
	}
	defer pair.stop()
	leastPair, err := b.loader("pair", connections, least)
	if err != nil {
		return nil, err
	}
	defer leastPair.stop()
	empty, err := b.loader("echo", connections, echo)
	if err != nil {
		return nil, err
	}
	defer empty.stop()
	var pairs, leasts, echoes runs
	for range b.rounds {
		p, err := pair.run(b.length, sidecar)
		if err != nil {
			return nil, err
		}
		l, err := leastPair.run(b.length, least)
		if err != nil {
			return nil, err
		}
		e, err := empty.run(b.length, echo)
		if err != nil {
			return nil, err
		}
		pairs, leasts, echoes = append(pairs, p), append(leasts, l), append(echoes, e)
		b.log.Printf("P1 %d connections: %.0f pairs/s, %s; %s %.0f pairs/s, %s; echo %.0f requests/s, %s", connections,
			p.rate(), runs{p}.cost(), floorMemory, l.rate(), runs{l}.cost(), e.rate(), runs{e}.cost())
	}
	row := func(what string, r runs) result {
		ratio := median(ratios(r.rates(), echoes.rates())) * 2
		return result{
			id: "P1", what: what + ", 64 connections", figure: fmt.Sprintf("%.0f pairs/s, %s", median(r.rates()), r.cost()),
			peer:  fmt.Sprintf("echo: %.0f requests/s, %s", median(echoes.rates()), echoes.cost()),
			ratio: fmt.Sprintf("%.2f of half the echo", ratio), score: ratio, goal: none,
		}
	}
	lower := row(floorMemory, leasts)
	lower.score = 0 // nobody makes it better or worse
	// The floor is the cost of two requests when the server does nothing. The processor is
	// full, so what a pair costs decides how many there are.
	floor := result{
		id: "P1", what: "floor: two requests of the echo", figure: fmt.Sprintf("%.1f µs of processor time (the load's own: %.1f µs)", 2*median(echoes.costs()), 2*median(echoes.loads())),
		peer:  fmt.Sprintf("a pair: %.1f µs (the load's own: %.1f µs)", median(pairs.costs()), median(pairs.loads())),
		ratio: fmt.Sprintf("%.2f of a pair", 2*median(echoes.costs())/median(pairs.costs())), goal: none,
	}
	return []result{row("acquire+release on `memory://`", pairs).wants(goal), lower, floor}, nil
}

// echoBody is as long as the body of a grant.
var echoBody = []byte(`{"granted":true,"key":"bench:1","token":1700000000000000,"session":"0a1b2c3d","bind":"session","reentry":1,"expires_in_ms":14250,"waited_ms":0,"acquired_at":"2026-01-01T00:00:00.000000Z"}`)

// serveEcho answers every request with as many bytes as a grant has.
func serveEcho(socket string) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := &fasthttp.Server{NoDefaultServerHeader: true, Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBody(echoBody)
	}}
	log.Fatal(server.Serve(listener))
}
