package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	stopKey = "bench:stop"
	// stopSettles is for how long the session has held a lock before the first stop. Locks that are held for less than a second are seldom
	// asked for, so their sidecars need not hear yet.
	stopSettles = 2 * time.Second
	// stopEvent is how long a stop may take to arrive at all.
	stopEvent = 10 * time.Second
)

// stops measures so often how long it takes, in milliseconds, from a request to stop to the event in the session of the holder behind another sidecar.
func (b *bench) stops(holder, asker *process, times int) ([]float64, error) {
	stream, err := net.Dial("unix", holder.socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	if _, err := fmt.Fprint(stream, "POST /v1/sessions HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n"); err != nil {
		return nil, err
	}
	_ = stream.SetReadDeadline(time.Now().Add(stopEvent))
	answer, err := http.ReadResponse(bufio.NewReader(stream), nil) //nolint:bodyclose // its end is that of the connection
	if err != nil {
		return nil, err
	}
	events := bufio.NewScanner(answer.Body)
	session, err := nextEvent(events, "session")
	if err != nil {
		return nil, err
	}
	app, err := dial(holder.socket)
	if err != nil {
		return nil, err
	}
	defer app.close()
	app.more = fmt.Appendf(nil, "Lock-Session: %s\r\n", session["session"])
	other, err := dial(asker.socket)
	if err != nil {
		return nil, err
	}
	defer other.close()
	if _, err := app.acquire(stopKey+":before", nil); err != nil {
		return nil, err
	}
	time.Sleep(stopSettles)
	took := make([]float64, 0, times)
	for len(took) < times {
		if err := b.ctx.Err(); err != nil {
			return nil, err
		}
		if _, err := app.acquire(stopKey, nil); err != nil {
			return nil, err
		}
		pause()
		began := time.Now()
		if _, err := other.call(nil, "POST", stopKey+"/stop", nil, 202); err != nil {
			return nil, err
		}
		_ = stream.SetReadDeadline(began.Add(stopEvent))
		if _, err := nextEvent(events, "stop"); err != nil {
			return nil, err
		}
		took = append(took, float64(time.Since(began))/float64(time.Millisecond))
		if _, err := app.release(stopKey, nil); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// nextEvent reads the data of the next event, which must have a name.
func nextEvent(events *bufio.Scanner, want string) (data map[string]any, err error) {
	name := ""
	for events.Scan() {
		if value, ok := strings.CutPrefix(events.Text(), "event: "); ok {
			name = value
		} else if value, ok := strings.CutPrefix(events.Text(), "data: "); ok {
			if name != want {
				return nil, fmt.Errorf("the event %s, want %s: %s", name, want, value)
			}
			err = json.Unmarshal([]byte(value), &data)
			return data, err
		}
	}
	return nil, errors.Join(fmt.Errorf("no event %s", want), events.Err())
}
