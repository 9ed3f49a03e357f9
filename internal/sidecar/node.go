package sidecar

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy"
	"github.com/locksidecar/locksidecar/store"
)

const (
	// podKeptKeys is how many keys of a pod are remembered because they are kept, or may be: a sidecar for itself has eight times as many.
	podKeptKeys = 2048
	// podShare: one pod may have this part of the connections of the node.
	podShare = 4
	// lookPause is the longest time between two looks at the folder. The system reports changes; this is for reports that are lost.
	lookPause = 5 * time.Second
	// successorPatience is how long a run that is stopped goes on as before, until another one takes its paths. The pod of the next one may have to be made first.
	// It is more than lookPause.
	successorPatience = 10 * time.Second
	// aloneDrain is the longest drain without a successor: until it is over, the pods get no new locks.
	aloneDrain = 25 * time.Second
	// readyPatience is how long a pod's socket waits until the pod can have locks.
	readyPatience = 5 * time.Second
	// elsewherePause is the pause between two looks for a run whose locks are elsewhere.
	elsewherePause = time.Second
	// folderPause is the pause between two looks for a folder that csi has not made yet.
	folderPause = 200 * time.Millisecond
)

// node is the lock server of a node: the command `node`. Each pod with a published volume has a socket, a manager and a view of the store of its
// own, so nothing of one pod is seen by another, and the end of a pod ends its locks alone. The views share connections, and their managers a beat.
//
// # Two runs
//
// While the server is updated, two runs live: see [instance.Runs]. When the new one can reach the store, it becomes current. It takes over each pod's
// path, and is ready when it has all. If it ends before the old one is stopped, the old one takes the paths again.
// Otherwise the old one is stopped then. Its connections, and its sessions with their locks, stay with it: it accepts no more, and each pod's part ends when
// the pod holds no locks there and waits for none, at the latest after the drain timeout. Calls on new connections that name a session of the
// old run are passed on to it.
//
// A run that is stopped resigns, so that another one may take its paths. If none has taken a path after a while, the stop is that of a sidecar: no new locks, and a
// short wait for the held ones.
type node struct {
	Options

	folder hostfolder.Folder
	policy *policy
	log    *slog.Logger
	tel    *telemetry.Telemetry
	flush  func() // sends the remaining spans and metrics, once
	space  store.Space
	beat   lease.Beat
	room   *proxy.Room
	memory *shares
	run    *instance.Run
	left   *inheritance
	gauges *gauges

	// looking: a look is under way.
	looking sync.Mutex

	mu sync.Mutex
	// pods are those that are served, or end. One that is nil is being opened.
	pods map[hostfolder.Key]*pod
	// complete: all published volumes were served once.
	complete bool
	// refused are the publications that the policy does not allow.
	refused map[hostfolder.Key]string
	// opening and ending count the goroutines of pods that are being opened, or end.
	opening, ending sync.WaitGroup
	// changed is told when a pod is served, or has ended and its key may be published again.
	changed chan struct{}
	// patience is successorPatience, but in tests.
	patience time.Duration
}

// RunNode serves the pods of a node until ctx ends, and stops. It is as [Run] otherwise.
func RunNode(ctx, hurry context.Context, o Options) error {
	n := &node{
		Options: o, folder: hostfolder.Folder(o.Config.NodeFolder), log: slog.New(o.Log),
		pods: map[hostfolder.Key]*pod{}, refused: map[hostfolder.Key]string{}, changed: make(chan struct{}, 1), gauges: newGauges(),
		patience: min(successorPatience, o.Config.DrainTimeout),
	}
	var err error
	if n.policy, err = readPolicy(o.Config.NodePolicyFile); err != nil {
		return exitcode.With(exitcode.Config, fmt.Errorf("%sNODE_POLICY_FILE: %w", config.Prefix, err))
	}
	name := strings.ToLower(rand.Text()[:12])
	n.log.Info("locksidecar node starts", "version", o.Version, "folder", string(n.folder), "store", o.Config.Store, "run", name)
	if !n.awaitFolder(ctx) {
		return nil
	}
	n.tel = telemetry.Start(ctx, telemetry.Options{
		Lookup: o.Lookup, Version: o.Version, Instance: o.Config.Pod + "-" + name, Pod: o.Config.Pod, MaxLinks: o.Config.BatchMax, Logger: n.log,
	})
	n.flush = sync.OnceFunc(func() { sendRest(n.tel, n.log) })
	defer n.flush()
	n.tel.Metrics.ObserveLog(o.Log.Dropped)
	n.tel.Metrics.Locks.Observe(n.gauges.state)
	n.tel.Metrics.Locks.ObserveFleet(n.gauges.fleet)

	keepHeapFloor(o.Lookup)
	n.memory = watchShares(min(memoryLimit(), memoryWithout), n.log)
	n.room = proxy.NewRoom(maxConns(everyone(o.Config), memoryLimit(), fileLimit(), filesOnNode, n.log))
	n.tel.Metrics.Calls.Observe(n.room.Used)
	return n.serve(ctx, hurry, name)
}

// serve serves the pods with one space, and stops.
func (n *node) serve(ctx, hurry context.Context, name string) (err error) {
	serving, outdated := context.WithCancelCause(ctx)
	defer outdated(nil)
	if n.space, err = NewSpace(n.Config, SpaceOptions{Log: n.log, Telemetry: n.tel, TooOld: outdated}); err != nil {
		return exitcode.With(exitcode.Config, err)
	}
	defer n.space.Stop()
	if err := n.space.Start(ctx); err != nil {
		return exitcode.With(exitcode.Config, fmt.Errorf("the store cannot work: %w", err))
	}
	admin := proxy.New(proxy.Config{
		Ready: n.ready, Logger: n.log, Version: n.Version, AdminAddr: n.Config.AdminAddr, MetricsHandler: n.tel.Scrape, OneNamespace: true,
		Room: n.room, MaxConns: 1, MaxBody: n.Config.MaxBody, TTL: n.Config.TTL,
	})
	if err := admin.Start(ctx); err != nil {
		return exitcode.With(exitcode.CannotOpen, err)
	}
	defer admin.Stop()
	if err := n.begin(serving, name); err != nil {
		if serving.Err() != nil && n.run != nil {
			n.log.Info("stopped before the start was complete", "reason", context.Cause(serving))
			return errors.Join(n.endRun(), n.unrequested(ctx, serving))
		}
		return exitcode.With(exitcode.CannotOpen, fmt.Errorf("%sNODE_FOLDER: %w", config.Prefix, err))
	}

	watching, endWatch := context.WithCancel(context.Background())
	defer endWatch()
	var watched sync.WaitGroup
	watched.Go(func() { n.watch(watching, serving) })
	<-serving.Done()
	n.stop(hurry, context.Cause(serving))
	endWatch()
	watched.Wait()
	n.ending.Wait()
	if err := n.endRun(); err != nil {
		n.log.Warn("cannot remove the files of this run", "error", err)
	}
	n.space.Stop()
	n.flush()
	n.log.Info("stopped")
	return n.unrequested(ctx, serving)
}

// unrequested is why serving has ended, if nobody asked for it: the database needs a newer program.
func (n *node) unrequested(ctx, serving context.Context) error {
	if ctx.Err() == nil {
		return exitcode.With(exitcode.Config, fmt.Errorf("%s: %w", n.Version, context.Cause(serving)))
	}
	return nil
}

// everyone is the configuration of all pods together, for the limit on connections. What a pod may have is not what the node can have.
func everyone(cfg config.Config) config.Config {
	const pods = 250 // what a kubelet runs at most, by its documents, is 110; clusters raise it
	cfg.MaxSessions = min(cfg.MaxSessions, math.MaxInt32/8/pods) * pods
	cfg.MaxWaiters = min(cfg.MaxWaiters, math.MaxInt32/8/pods) * pods
	cfg.PoolMaxConns += pods // the two sockets of each: a connection counts as two descriptors
	if cfg.Store.Kind == config.MySQL {
		cfg.PoolMaxConns += 3 * pods // each view has one for renewals, one for its letters, and one in which it sleeps
	}
	return cfg
}

// awaitFolder waits until csi has made the folder. It reports false if the process must stop before.
func (n *node) awaitFolder(ctx context.Context) bool {
	for said := false; ; said = true {
		_, err := os.ReadDir(n.server()) // csi makes it last
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return true
		}
		if !said {
			n.log.Warn("waiting for the folder, which `locksidecar csi` makes for the user that it is started with (--user)",
				"folder", string(n.folder), "user", os.Geteuid(), "error", err)
		}
		select {
		case <-ctx.Done():
			n.log.Info("stopped before the start was complete", "reason", context.Cause(ctx))
			return false
		case <-time.After(folderPause):
		}
	}
}

func (n *node) server() string { return n.folder.Server(os.Geteuid()) }

// begin makes this run the current one, and finds what runs before have left. While another run serves, this one first waits for the store: it must
// not take over what it cannot serve.
func (n *node) begin(ctx context.Context, name string) (err error) {
	if n.run, err = instance.RunsIn(n.server()).Begin(name); err != nil {
		return err
	}
	n.left = &inheritance{log: n.log}
	if n.left.take(n.run) {
		n.log.Info("another run serves: this one takes over when it can reach the store")
		if err := n.awaitStore(ctx); err != nil {
			return err
		}
	}
	return n.takeOver(ctx)
}

// takeOver makes this run the current one. While another one lives whose locks are elsewhere, it waits: two apps could get the same lock, from one each.
func (n *node) takeOver(ctx context.Context) error {
	place := n.place()
	said := ""
	for {
		err := n.run.TakeOver(place)
		if _, elsewhere := errors.AsType[*instance.ElsewhereError](err); !elsewhere && !errors.Is(err, instance.ErrNoTurn) {
			return err
		}
		if said != err.Error() {
			said = err.Error()
			n.log.Error("this lock server serves nobody yet, because another one lives. If its locks are elsewhere and that is intended, end its pod", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(elsewherePause):
		}
	}
}

// place is where the locks of this run are. No other run shares those in memory.
func (n *node) place() instance.Place {
	place := instance.Place{Namespaces: n.policy.Namespaces}
	place.Store, place.Hosts = n.Config.Store.Place()
	if n.Config.Store.Kind == config.Memory {
		place.Hosts = []string{"the memory of the run " + n.run.Name()}
	}
	return place
}

func (n *node) endRun() error {
	n.left.close()
	return n.run.End()
}

// awaitStore waits until the store can be used, through a view that takes no locks.
func (n *node) awaitStore(ctx context.Context) error {
	const pause = 20 * time.Millisecond
	id, err := instance.New(n.Config.Pod, n.Version)
	if err != nil {
		return err
	}
	st := n.space.View(store.Identity{Namespace: n.Config.Namespace, Instance: id, Pod: n.Config.Pod})
	defer st.Stop()
	if err := st.Start(ctx, nil); err != nil {
		return err
	}
	for st.Ready() != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
	return nil
}

// besides is the socket of a run for the calls of a pod that other runs pass on.
func besides(runs instance.Runs, run string, k hostfolder.Key) string {
	return filepath.Join(runs.Folder(run), string(k)+".s")
}

// others lists these sockets of the other runs. Most of the time there is none.
func (n *node) others(k hostfolder.Key) (sockets []string, err error) {
	runs, err := n.run.Others()
	if err != nil {
		n.log.Warn("cannot see the other runs: calls for their sessions are refused", "error", err)
	}
	for _, run := range runs { // of one that has ended, nobody listens
		sockets = append(sockets, besides(n.run.Runs, run, k))
	}
	return sockets, err
}

// watch serves what is published, until ctx ends. When serving has ended, it begins nothing new, and still ends what is unpublished.
func (n *node) watch(ctx, serving context.Context) {
	var events <-chan fsnotify.Event
	report := func() { // the system may have no more watches for this user now, and some later
		if changes := n.changes(ctx); changes != nil {
			events = changes.Events
		}
	}
	report()
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	end := serving.Done()
	for {
		n.look(serving)
		select {
		case <-ctx.Done():
			return
		case <-end:
			end = nil
		case <-events:
		case <-n.changed:
		case <-tick.C:
			if events == nil {
				report()
			}
		}
	}
}

// changes reports changes of the folder with the descriptions until ctx ends, or is nil.
func (n *node) changes(ctx context.Context) *fsnotify.Watcher {
	changes, err := fsnotify.NewWatcher()
	if err == nil {
		if err = changes.Add(n.folder.Volumes()); err != nil {
			_ = changes.Close()
		}
	}
	if err != nil {
		n.log.Warn("changes of the folder are not reported, so they are noticed later", "error", err, "after", lookPause.String())
		return nil
	}
	context.AfterFunc(ctx, func() { _ = changes.Close() })
	return changes
}

// look compares what is published with what is served, once.
func (n *node) look(serving context.Context) {
	n.looking.Lock()
	defer n.looking.Unlock()
	published, err := n.folder.Published()
	if err != nil {
		n.log.Warn("cannot read all published volumes", "error", err)
		if published == nil {
			return // nothing is known, so nothing ends
		}
	}
	for k, p := range n.served() {
		v, is := published[k]
		if is && v.Publication == p.volume.Publication || !is && n.folder.IsPublished(k) {
			continue
		}
		n.end(p)
	}
	if serving.Err() != nil {
		return
	}
	switch err := n.run.IfCurrent(func() error { return nil }); {
	case errors.Is(err, instance.ErrNotCurrent):
		n.log.Debug("no sockets are made", "reason", err)
		return
	case err != nil:
		n.log.Warn("no sockets are made, trying again", "error", err, "after", lookPause.String())
		return
	}
	n.left.take(n.run) // a run that has died since
	maps.DeleteFunc(n.refused, func(k hostfolder.Key, _ string) bool { _, is := published[k]; return !is })
	complete := err == nil || !n.servesUnread(published)
	for k, v := range published {
		if n.refuses(k, v) {
			continue
		}
		n.mu.Lock()
		p, known := n.pods[k]
		if !known {
			n.pods[k] = nil
			n.opening.Go(func() { n.servePod(serving, k, v) })
		}
		n.mu.Unlock()
		if p == nil || p.isEnding() || !p.front.Serves() && !p.serveAgain(serving) {
			complete = false
		}
	}
	if complete && !n.isComplete() {
		n.mu.Lock()
		n.complete = true
		n.mu.Unlock()
		n.log.Info("ready", "pods", len(published))
	}
	if n.isComplete() { // before that, pods that are opened revoke what was left for them
		n.left.reapRest(serving, n)
	}
}

// servesUnread reports whether a pod has a socket whose description cannot be read. Another run serves it then, and must not be stopped.
func (n *node) servesUnread(published map[hostfolder.Key]hostfolder.Volume) bool {
	unread, err := n.folder.Unread(published)
	return err != nil || slices.ContainsFunc(unread, func(k hostfolder.Key) bool {
		_, err := os.Lstat(n.folder.Socket(k))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// refuses reports whether the policy does not allow a pod, and says so once.
func (n *node) refuses(k hostfolder.Key, v hostfolder.Volume) bool {
	if n.policy.allows(v.Pod) {
		return false
	}
	if n.refused[k] != v.Publication {
		n.log.Warn("the policy does not allow pods of this namespace, so this one gets no socket", "pod", v.Pod.Name, "pod_namespace", v.Pod.Namespace)
		n.refused[k] = v.Publication
	}
	return true
}

// contain, deferred, ends a panic in the work for one pod, because the other pods of the node go on.
func (n *node) contain(log *slog.Logger, work string) {
	if v := recover(); v != nil {
		log.Error("panic", "in", work, "panic", v, "stack", string(debug.Stack()))
	}
}

// servePod begins to serve a pod. If it cannot, a later look tries again.
func (n *node) servePod(ctx context.Context, k hostfolder.Key, v hostfolder.Volume) {
	p, err := n.tryOpen(ctx, v)
	n.mu.Lock()
	if err == nil {
		n.pods[k] = p
	} else {
		delete(n.pods, k)
	}
	n.mu.Unlock()
	switch {
	case err == nil:
		n.lookAgain()
	case errors.Is(err, instance.ErrNotCurrent):
		n.log.Debug("a later run makes the sockets")
	case !n.folder.IsPublished(k):
		n.log.Debug("a pod ended before it was served", "pod", v.Pod.Name, "pod_namespace", v.Pod.Namespace, "error", err)
	default:
		n.log.Error("cannot serve a pod, trying again", "pod", v.Pod.Name, "pod_namespace", v.Pod.Namespace, "error", err)
	}
}

// tryOpen opens a pod. A panic is its failure alone.
func (n *node) tryOpen(ctx context.Context, v hostfolder.Volume) (p *pod, err error) {
	defer func() {
		if v := recover(); v != nil {
			p, err = nil, fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return n.open(ctx, v)
}

// end ends a pod whose volume is unpublished. Its locks are released, and the locks of no other pod.
func (n *node) end(p *pod) {
	if !p.beginEnd() {
		return
	}
	p.log.Info("the volume is unpublished: its sessions end")
	n.ending.Go(func() {
		p.close()
		n.forget(p)
	})
}

func (n *node) forget(p *pod) {
	n.mu.Lock()
	delete(n.pods, p.key)
	n.mu.Unlock()
	n.lookAgain()
}

func (n *node) lookAgain() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// served are the pods that are served, or end.
func (n *node) served() map[hostfolder.Key]*pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	served := maps.Clone(n.pods)
	maps.DeleteFunc(served, func(_ hostfolder.Key, p *pod) bool { return p == nil })
	return served
}

func (n *node) isComplete() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.complete
}

var errIncomplete = errors.New("not all published volumes are served yet")

// ready is nil if this run serves all pods, and each can get locks. Then the run before may be stopped.
func (n *node) ready() error {
	if !n.isComplete() {
		return errIncomplete
	}
	for _, p := range n.served() {
		if err := p.locks.Ready(); err != nil {
			return err
		}
	}
	return nil
}

// stop ends all pods, each when it may: see [node].
func (n *node) stop(hurry context.Context, reason error) {
	n.log.Info("stopping", "reason", reason, "drain_timeout", n.Config.DrainTimeout.String())
	n.looking.Lock() // later looks begin nothing
	n.opening.Wait()
	pods := n.served()
	n.looking.Unlock()
	n.resign(hurry)
	var leaving sync.WaitGroup
	for _, p := range pods {
		leaving.Go(func() {
			func() {
				defer n.contain(p.log, "the wait for a pod's locks")
				p.leave(hurry, n.patience)
			}()
			if p.beginEnd() {
				p.close()
				n.forget(p)
			}
		})
	}
	leaving.Wait()
}

// resign lets another run take over. If that one is frozen just now, it is tried again while the pods wait for it.
func (n *node) resign(hurry context.Context) {
	err := n.run.Resign()
	if err == nil {
		return
	}
	n.log.Warn("cannot let another run take over, trying again", "error", err)
	again, stop := context.WithTimeout(hurry, n.patience)
	n.ending.Go(func() {
		defer stop()
		for again.Err() == nil && n.run.Resign() != nil {
			select {
			case <-again.Done():
			case <-time.After(elsewherePause):
			}
		}
	})
}

// keysOf lists pods in one order.
func keysOf[V any](m map[hostfolder.Key]V) []hostfolder.Key { return slices.Sorted(maps.Keys(m)) }
