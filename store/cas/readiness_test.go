package cas_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/store/cas"
)

// A server that cannot be used is checked again and again, and then only after a doubt. Each change is logged once. Nothing
// changes after Stop.
func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		checks, down := 0, errors.New("down")
		r := cas.Readiness{Name: "test", Log: slog.New(slog.NewTextHandler(&log, nil)), Limit: time.Second}
		r.Init(func(context.Context) error {
			if checks++; checks < 4 {
				return down
			}
			return nil
		}, errors.New("not reached"))
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Ready(); !errors.Is(err, down) {
			t.Errorf("ready: %v, want the reason of the check", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.Ready() != nil || checks != 4 {
			t.Errorf("ready: %v after %d checks, want 4", r.Ready(), checks)
		}
		r.Doubt()
		synctest.Wait()
		if checks != 5 {
			t.Errorf("%d checks after a doubt, want 5", checks)
		}
		if !r.Stop() || r.Stop() {
			t.Error("the first Stop must end the checks, and the second find none")
		}
		if r.Become(nil); r.Ready() == nil || r.Start(t.Context()) == nil {
			t.Error("ready, or started, after Stop")
		}
		if got := strings.Count(log.String(), "msg="); got != 2 {
			t.Errorf("%d lines, want one for each change:\n%s", got, log.String())
		}
	})
}

// Stop ends the first check, too, and waits for it: no check uses connections that the backend has closed.
func TestStopEndsTheFirstCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		r := cas.Readiness{Name: "test", Limit: time.Hour}
		r.Init(func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second) // it does not end at once
			ended = true
			return ctx.Err()
		}, errors.New("not reached"))
		done := make(chan error)
		go func() { done <- r.Start(t.Context(), func(ctx context.Context) { <-ctx.Done() }) }()
		synctest.Wait()
		began := time.Now()
		if !r.Stop() || !ended || time.Since(began) > time.Minute {
			t.Errorf("the check has ended: %t, after %v", ended, time.Since(began))
		}
		if err := <-done; err != nil || r.Ready() == nil {
			t.Errorf("started: %v, ready: %v", err, r.Ready())
		}
		if r.Stop() {
			t.Error("there was more to stop")
		}
	})
}

// Many doubts do not make many checks. Each check costs the servers something, and also a request that failed for another reason is a
// doubt.
func TestDoubtsAreCheckedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		r := cas.Readiness{Name: "test", Limit: time.Second}
		r.Init(func(context.Context) error {
			checks++
			return nil
		}, errors.New("not reached"))
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			r.Doubt()
			time.Sleep(time.Millisecond)
		}
		r.Stop()
		if most := int(time.Second/cas.FirstPause) + 2; checks < 2 || checks > most {
			t.Errorf("%d checks in a second, want at most %d", checks, most)
		}
	})
}
