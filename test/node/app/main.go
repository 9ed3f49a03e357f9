// Command app stands in for the apps of the test's pods:
//
//	app pause        does nothing until SIGTERM
//	app hold KEY     waits for the lock, holds it, and says in lines of its log what happens
//	app pool KEY     holds locks for moments, by a pool of connections with one session, and counts: see pool.go
//
// After SIGTERM it holds the lock for two more seconds, and ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	switch {
	case len(os.Args) == 3 && os.Args[1] == "pool":
		pool(ctx, os.Args[2])
		return
	case len(os.Args) < 3 || os.Args[1] != "hold":
		<-ctx.Done()
		return
	}
	for hold(ctx, os.Args[2]) {
		// A sidecar that was killed comes back within seconds.
		time.Sleep(100 * time.Millisecond)
	}
	say("ended")
}

// say writes a line with the time, so that the logs of two containers can be compared.
func say(text string, args ...any) {
	fmt.Println(time.Now().UTC().Format(time.RFC3339Nano), fmt.Sprintf(text, args...))
}

// lock is what the sidecar says of a lock.
type lock struct {
	Granted, Mine bool
	Token         int64
}

// hold holds the lock in a session of its own. It reports whether to try again: the lock was lost.
func hold(ctx context.Context, key string) bool {
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", os.Getenv("LOCKSIDECAR_SOCKET"))
		},
		MaxConnsPerHost: 1, // the connection is the session
	}}
	defer client.CloseIdleConnections()
	mine, err := call(ctx, client, http.MethodPut, key, `{"wait_ms":600000}`)
	if err != nil || !mine.Granted {
		say("no lock: %v", err) // not the word that tests wait for
		return ctx.Err() == nil
	}
	say("granted %d", mine.Token)
	end := time.Time{}
	for {
		now, err := call(context.Background(), client, http.MethodGet, key, "")
		if err != nil || !now.Mine || now.Token != mine.Token {
			say("lost %d: %v", mine.Token, err)
			return ctx.Err() == nil
		}
		switch {
		case ctx.Err() != nil && end.IsZero():
			say("stopping")
			end = time.Now().Add(2 * time.Second)
		case !end.IsZero() && time.Now().After(end):
			say("still held %d", mine.Token)
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func call(ctx context.Context, client *http.Client, method, key, body string) (got lock, err error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost/v1/locks/"+key, strings.NewReader(body))
	if err != nil {
		return got, err
	}
	answer, err := client.Do(req)
	if err != nil {
		return got, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", answer.Status)
	}
	if decoded := json.NewDecoder(answer.Body).Decode(&got); err == nil {
		err = decoded
	}
	return got, err
}
