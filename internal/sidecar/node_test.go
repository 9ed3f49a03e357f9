package sidecar

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/logtest"
	"github.com/locksidecar/locksidecar/lease"
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

func no() bool { return false }

// newNode is a node on a folder, without its loops.
func newNode(t *testing.T, space store.Space, log *logtest.Log) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // the paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	folder := hostfolder.Folder(dir + "/h")
	if err := errors.Join(os.MkdirAll(folder.Volumes(), 0o755), os.MkdirAll(folder.Server(os.Geteuid()), 0o755)); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.LoadNode(config.FromMap(map[string]string{"LOCKSIDECAR_STORE_URL": "memory://", "LOCKSIDECAR_NODE_FOLDER": string(folder)}))
	if err != nil {
		t.Fatal(err)
	}
	run, err := instance.RunsIn(folder.Server(os.Geteuid())).Begin("run")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		Options: Options{Config: cfg}, folder: folder, policy: &policy{}, log: slog.New(slog.NewTextHandler(log, nil)),
		tel: &telemetry.Telemetry{Metrics: &metrics.Set{}}, space: space, room: proxy.NewRoom(100), memory: newShares(no, no),
		run: run, pods: map[hostfolder.Key]*pod{}, refused: map[hostfolder.Key]string{}, changed: make(chan struct{}, 1), gauges: newGauges(),
	}
	n.left = &inheritance{log: n.log}
	if err := run.TakeOver(n.place()); err != nil {
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
	n.stopAll(t)
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
	for _, noted := range []instance.Noted{{Pod: string(v.Key()), Namespace: "shop", Instance: "web-1@v"}, {Pod: "gone", Namespace: "pay", Instance: "x-1@v"}} {
		if _, err := other.Note(noted); err != nil {
			t.Fatal(err)
		}
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
	n.stopAll(t)
}

// stopAll stops a node, whose pods have let go.
func (n *node) stopAll(t *testing.T) {
	t.Helper()
	n.stop(t.Context(), errors.New("the test ends"))
	n.ending.Wait()
	if err := n.endRun(); err != nil {
		t.Error(err)
	}
}

// A run that is stopped serves as before until the next one takes its paths, also if that one does not live yet: its pod may have to be made first.
func TestStopWaitsForTheNextRun(t *testing.T) {
	var log logtest.Log
	n := newNode(t, memory.NewSpace(), &log)
	n.patience = time.Hour
	n.Config.DrainTimeout = 2 * time.Hour
	v := n.publish(t, "web")
	await.Until(t, "the pod to be served", func() bool { n.look(t.Context()); return n.serves(v) })
	p := n.served()[v.Key()]
	session, err := p.locks.OpenSession(lease.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.locks.Acquire(t.Context(), session, lease.Request{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	waiter, err := p.locks.OpenSession(lease.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waited, stopped := make(chan error, 1), make(chan struct{})
	go func() {
		_, err := p.locks.Acquire(t.Context(), waiter, lease.Request{Key: "k", Wait: time.Hour})
		waited <- err
	}()
	go func() { n.stop(t.Context(), errors.New("the test stops it")); close(stopped) }()
	await.Until(t, "it to resign", func() bool {
		_, err := os.Lstat(filepath.Join(n.server(), "current"))
		return errors.Is(err, fs.ErrNotExist)
	})
	await.Silent(t, waited, "end of a wait")
	// The next run takes the path, and the pod holds nothing here.
	next := n.folder.Socket(v.Key())
	if err := errors.Join(os.WriteFile(next+".next", nil, 0o600), os.Rename(next+".next", next)); err != nil {
		t.Fatal(err)
	}
	waiter.End(lease.EndDropped)
	session.End(lease.EndDropped)
	await.Receive(t, stopped, "the end of the stop")
	if err := <-waited; err == nil {
		t.Error("the call of a session that ended has the lock")
	}
	n.ending.Wait()
	if err := n.endRun(); err != nil {
		t.Error(err)
	}
}

// While a server lives whose locks are elsewhere, another one serves nobody, and says why.
func TestServerWithLocksElsewhere(t *testing.T) {
	var log logtest.Log
	n := newNode(t, memory.NewSpace(), &log)
	other, err := n.run.Begin("other")
	if err != nil {
		t.Fatal(err)
	}
	next := &node{Options: n.Options, folder: n.folder, policy: n.policy, log: n.log, run: other}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := next.takeOver(stopped); !errors.Is(err, context.Canceled) || !strings.Contains(log.String(), "this lock server serves nobody yet") {
		t.Errorf("%v\n%s", err, log.String())
	}
	took := make(chan error, 1)
	go func() { took <- next.takeOver(t.Context()) }()
	await.Silent(t, took, "take-over")
	n.stopAll(t)
	if err := await.Receive(t, took, "the take-over"); err != nil {
		t.Error(err)
	}
	if err := other.End(); err != nil {
		t.Error(err)
	}
}

// If it cannot be seen whether another run lives, it may.
func TestUnknownRunsMayLive(t *testing.T) {
	var log logtest.Log
	n := newNode(t, memory.NewSpace(), &log)
	if n.left.take(n.run) {
		t.Error("there is no other run")
	}
	if err := os.Mkdir(filepath.Join(n.server(), "strange.lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if !n.left.take(n.run) {
		t.Error("a run that cannot be looked at counts as none")
	}
	if err := os.RemoveAll(n.server()); err != nil {
		t.Fatal(err)
	}
	if !n.left.take(n.run) {
		t.Error("a folder that cannot be read counts as one without runs")
	}
}

// counted counts the views that are not stopped.
type counted struct {
	store.Space

	open atomic.Int64
}

func (s *counted) View(id store.Identity) store.Store {
	s.open.Add(1)
	return &countedView{Store: s.Space.View(id), of: s}
}

type countedView struct {
	store.Store

	of *counted
}

func (v *countedView) Stop() {
	v.Store.Stop()
	v.of.open.Add(-1)
}

// A pod that cannot be opened keeps no view of the store: another one is made at each look.
func TestFailedOpeningKeepsNoView(t *testing.T) {
	var log logtest.Log
	space := &counted{Space: memory.NewSpace()}
	n := newNode(t, space, &log)
	n.Config.CacheSize = -1
	if _, err := n.open(t.Context(), n.publish(t, "web")); err == nil {
		t.Error("no error")
	}
	if open := space.open.Load(); open != 0 || len(n.gauges.states) > 0 {
		t.Errorf("%d views are open, and %d gauges", open, len(n.gauges.states))
	}
	n.stopAll(t)
}

// A pod of a namespace that the policy does not allow gets no socket, and holds up nothing.
func TestRefusedNamespace(t *testing.T) {
	var log logtest.Log
	n := newNode(t, memory.NewSpace(), &log)
	n.policy.Allow = []string{"pay"}
	v := n.publish(t, "web")
	for range 2 {
		n.look(t.Context())
	}
	if len(n.served()) > 0 || !n.isComplete() || strings.Count(log.String(), "the policy does not allow") != 1 {
		t.Errorf("served: %d, complete: %t\n%s", len(n.served()), n.isComplete(), log.String())
	}
	if _, err := os.Lstat(n.folder.Socket(v.Key())); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket: %v", err)
	}
	n.stopAll(t)
}

// A run that cannot read whose a volume is does not claim to serve all if another one serves that pod, which would be stopped.
func TestUnreadableDescriptionIsNotServed(t *testing.T) {
	var log logtest.Log
	n := newNode(t, memory.NewSpace(), &log)
	v := n.publish(t, "web")
	k := hostfolder.KeyOf("bad", "/k")
	bad := filepath.Join(n.folder.Volumes(), string(k)+".json")
	if err := errors.Join(os.WriteFile(bad, []byte("{"), 0o600), os.Mkdir(n.folder.Pod(k), 0o700), os.WriteFile(n.folder.Socket(k), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the other pod to be served", func() bool { n.look(t.Context()); return n.serves(v) })
	n.look(t.Context())
	if n.isComplete() {
		t.Error("the run is ready")
	}
	if err := os.Remove(n.folder.Socket(k)); err != nil { // nobody serves it
		t.Fatal(err)
	}
	if n.look(t.Context()); !n.isComplete() {
		t.Error("the run is not ready")
	}
	n.stopAll(t)
}

// A run that meets one that is frozen in its turn tries again: its process would be started again later and later.
func TestTakeOverWaitsForAFrozenRun(t *testing.T) {
	var log logtest.Log
	n := newNode(t, memory.NewSpace(), &log)
	frozen, err := os.OpenFile(filepath.Join(n.server(), "turn"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(frozen.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	took := make(chan error, 1)
	go func() { took <- n.takeOver(t.Context()) }()
	await.Until(t, "the first try to fail", func() bool { return len(took) > 0 || strings.Contains(log.String(), "its process may be frozen") })
	if err := frozen.Close(); err != nil {
		t.Fatal(err)
	}
	if err := await.Receive(t, took, "the take-over"); err != nil {
		t.Error(err)
	}
	n.stopAll(t)
}
