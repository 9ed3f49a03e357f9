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
	request := []byte("PUT /v1/locks/bench:1 HTTP/1.1\r\nHost: b\r\n\r\n")
	var pairs, echoes, ratios []float64
	for range b.rounds {
		p, err := b.pairs(sidecar.socket, connections)
		if err != nil {
			return nil, err
		}
		e, err := b.load(echo.socket, connections, func(c *conn, _ int) func() error {
			return func() error { return c.roundTrip(request) }
		})
		if err != nil {
			return nil, err
		}
		b.log.Printf("P1 %d connections: %.0f pairs/s; echo %.0f requests/s", connections, p, e)
		pairs, echoes, ratios = append(pairs, p), append(echoes, e), append(ratios, p/(e/2))
	}
	return []result{{
		id: "P1", what: "acquire+release on `memory://`, 64 connections",
		figure: fmt.Sprintf("%.0f pairs/s", median(pairs)), peer: fmt.Sprintf("echo: %.0f requests/s", median(echoes)),
		ratio: fmt.Sprintf("%.2f of half the echo", median(ratios)), goal: fmt.Sprintf("at least %.2f", goal), reached: median(ratios) >= goal,
	}}, nil
}

// serveEcho answers every request with as many bytes as a grant has.
func serveEcho(socket string) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	body := []byte(`{"granted":true,"key":"bench:1","token":1700000000000000,"session":"0a1b2c3d","bind":"session","reentry":1,"expires_in_ms":14250,"waited_ms":0,"acquired_at":"2026-01-01T00:00:00.000000Z"}`)
	server := &fasthttp.Server{NoDefaultServerHeader: true, Handler: func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("application/json")
		ctx.SetBody(body)
	}}
	log.Fatal(server.Serve(listener))
}
