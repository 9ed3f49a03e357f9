package sidecar

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/proxy"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/memory"
)

// panicking is a space whose views panic for some pods: when they are made, or when they end.
type panicking struct{ store.Space }

func (s panicking) View(id store.Identity) store.Store {
	if id.Pod == "bad-open" {
		panic("in View")
	}
	st := s.Space.View(id)
	if id.Pod == "bad-end" {
		return panicsAtItsEnd{st}
	}
	return st
}

type panicsAtItsEnd struct{ store.Store }

func (s panicsAtItsEnd) Stop() {
	s.Store.Stop()
	panic("in Stop")
}

// newNode is a node on a folder, without its loops.
func newNode(t *testing.T, space store.Space, log *logtest.Log) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	folder := hostfolder.Folder(dir + "/h")
	if err := errors.Join(os.MkdirAll(folder.Volumes(), 0o755), os.MkdirAll(folder.Server(), 0o755)); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.LoadNode(config.FromMap(map[string]string{"LOCKSIDECAR_STORE_URL": "memory://", "LOCKSIDECAR_NODE_FOLDER": string(folder)}))
	if err != nil {
		t.Fatal(err)
	}
	run, err := instance.RunsIn(folder.Server()).Begin("run")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		Options: Options{Config: cfg}, folder: folder, policy: &policy{}, log: slog.New(slog.NewTextHandler(log, nil)),
		tel: &telemetry.Telemetry{Metrics: &metrics.Set{}}, space: space, room: proxy.NewRoom(100), memory: func() bool { return false },
		run: run, pods: map[hostfolder.Key]*pod{}, changed: make(chan struct{}, 1), gauges: newGauges(),
	}
	n.left = &inheritance{log: n.log}
	if err := run.TakeOver(); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) publish(t *testing.T, name string) hostfolder.Volume {
	t.Helper()
	v := hostfolder.Volume{ID: "csi-" + name, Target: "/k/pods/" + name, Pod: hostfolder.Pod{Namespace: "shop", Name: name, UID: name}}
	if err := errors.Join(os.MkdirAll(n.folder.Pod(v.Key()), 0o755), n.folder.Describe(v, os.Getegid())); err != nil {
		t.Fatal(err)
	}
	return v
}

func (n *node) serves(v hostfolder.Volume) bool {
	p := n.served()[v.Key()]
	return p != nil && p.front.Serves()
}

// A panic in the opening or the end of one pod concerns that pod alone.
func TestPanicOfOnePod(t *testing.T) {
	var log logtest.Log
	n := newNode(t, panicking{memory.NewSpace()}, &log)
	badOpen, badEnd, good := n.publish(t, "bad-open"), n.publish(t, "bad-end"), n.publish(t, "good")
	look := func() { n.look(t.Context()) }
	await.Until(t, "the pods to be served", func() bool { look(); return n.serves(badEnd) && n.serves(good) })
	if n.serves(badOpen) || n.isComplete() {
		t.Error("the pod whose opening panics is served")
	}
	await.Until(t, "the panic to be logged", func() bool { return strings.Contains(log.String(), "in View") })
	for _, v := range []hostfolder.Volume{badOpen, badEnd} {
		if err := n.folder.Forget(v.Key()); err != nil {
			t.Fatal(err)
		}
	}
	await.Until(t, "the bad pods to be forgotten", func() bool { look(); return len(n.served()) == 1 && n.isComplete() })
	if !strings.Contains(log.String(), "in Stop") || !n.serves(good) {
		t.Errorf("the end's panic is not logged, or the good pod is not served:\n%s", log.String())
	}
	n.stop(t.Context(), errors.New("the test ends"))
	n.ending.Wait()
	if err := n.endRun(); err != nil {
		t.Error(err)
	}
}

// Two servers run, and the old one is killed. The new one revokes the leases of the old one, also those of pods that it serves already.
func TestRunThatDiesLater(t *testing.T) {
	var log logtest.Log
	space := memory.NewSpace()
	n := newNode(t, space, &log)
	v := n.publish(t, "web")
	await.Until(t, "the pod to be served", func() bool { n.look(t.Context()); return n.serves(v) && n.isComplete() })
	other, err := n.run.Begin("other")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(other.Note(string(v.Key()), instance.Noted{Namespace: "shop", Instance: "web-1@v"}), other.Note("gone", instance.Noted{Namespace: "pay", Instance: "x-1@v"})); err != nil {
		t.Fatal(err)
	}
	n.look(t.Context())
	if strings.Contains(log.String(), "did not stop cleanly") {
		t.Error("a living run is taken")
	}
	if err := other.End(); err != nil { // it has noted something, so this is as a kill -9
		t.Fatal(err)
	}
	await.Until(t, "all that it left to be revoked", func() bool {
		n.look(t.Context())
		names, err := n.run.Others()
		return err == nil && len(names) == 0
	})
	n.stop(t.Context(), errors.New("the test ends"))
	n.ending.Wait()
	if err := n.endRun(); err != nil {
		t.Error(err)
	}
}
