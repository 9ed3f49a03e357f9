package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// workers of a pool; each has a key and a connection of its own, and all have one session.
const workers = 4

// counts are what a pool has seen.
type counts struct {
	held    atomic.Int64 // locks that were granted, checked, and released
	retried atomic.Int64 // acquires that were refused or failed: nothing is lost by it
	lost    atomic.Int64 // locks that were gone before their release
}

// pool holds locks for moments until ctx ends. When its session ends, it opens another one.
func pool(ctx context.Context, key string) {
	var n counts
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			n.session(ctx, key)
		}
	}()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			say("ended: held %d, retried %d, lost %d", n.held.Load(), n.retried.Load(), n.lost.Load())
			return
		case <-tick.C:
			say("held %d, retried %d, lost %d", n.held.Load(), n.retried.Load(), n.lost.Load())
		}
	}
}

// session opens a session, and works with it until it ends.
func (n *counts) session(ctx context.Context, key string) {
	nc, err := net.Dial("unix", os.Getenv("LOCKSIDECAR_SOCKET"))
	if err != nil {
		n.retry("no connection: %v", err)
		return
	}
	defer nc.Close() // and not the body, whose Close reads to an end that does not come
	_, _ = io.WriteString(nc, "POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n")
	r := bufio.NewReader(nc)
	head, err := http.ReadResponse(r, nil)
	if err != nil || head.StatusCode != http.StatusOK {
		n.retry("no session: %v", err)
		return
	}
	events := bufio.NewScanner(head.Body)
	var first struct{ Session string }
	for events.Scan() && first.Session == "" {
		if data, ok := strings.CutPrefix(events.Text(), "data:"); ok {
			_ = json.Unmarshal([]byte(data), &first)
		}
	}
	say("session")
	ctx, end := context.WithCancel(ctx)
	defer end()
	go func() {
		defer end()
		for events.Scan() {
			if strings.HasPrefix(events.Text(), "event: lost") {
				n.lost.Add(1)
				say("event lost")
			}
		}
	}()
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("LOCKSIDECAR_SOCKET"))
				},
				MaxConnsPerHost: 1,
			}}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				n.once(client, first.Session, fmt.Sprint(key, "-", i))
			}
		})
	}
	all.Wait()
}

func (n *counts) retry(format string, args ...any) {
	n.retried.Add(1)
	say("retried: "+format, args...)
	time.Sleep(20 * time.Millisecond)
}

// once takes a lock, holds it, and releases it.
func (n *counts) once(client *http.Client, session, key string) {
	status, text := ask(client, http.MethodPut, session, key, `{"wait_ms":5000}`)
	if status != http.StatusOK {
		n.retry("acquire: %d %s", status, text)
		return
	}
	var got lock
	_ = json.Unmarshal([]byte(text), &got)
	claim := fmt.Sprintf(`{"token":%d}`, got.Token)
	time.Sleep(10 * time.Millisecond)
	if status, text := n.certainly(client, http.MethodPatch, session, key, claim); status != http.StatusOK {
		n.lost.Add(1)
		say("lost: %d %s", status, text)
		return
	}
	if status, text := n.certainly(client, http.MethodDelete, session, fmt.Sprintf("%s?token=%d", key, got.Token), ""); status != http.StatusOK {
		n.lost.Add(1)
		say("lost at its release: %d %s", status, text)
		return
	}
	n.held.Add(1)
}

// certainly repeats a call whose answer did not come, or that is unconfirmed: it changes nothing the second time.
func (n *counts) certainly(client *http.Client, method, session, key, body string) (status int, text string) {
	for range 20 {
		status, text = ask(client, method, session, key, body)
		if status != 0 && status != http.StatusServiceUnavailable {
			break
		}
		n.retry("%s: %d %s", method, status, text)
	}
	return status, text
}

// ask makes a call with the session. Status 0: there is no answer.
func ask(client *http.Client, method, session, key, body string) (status int, text string) {
	req, err := http.NewRequest(method, "http://localhost/v1/locks/"+key, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Lock-Session", session)
	answer, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(all)
}
