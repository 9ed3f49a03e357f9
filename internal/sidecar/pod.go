package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy"
	"github.com/locksidecar/locksidecar/store"
)

// podSocketMode: every user of the pod may connect. The mount decides which pod reaches a socket, and a pod's users may be mapped.
const podSocketMode = 0o666

// pod is what serves one pod of a node.
type pod struct {
	key    hostfolder.Key
	volume hostfolder.Volume
	log    *slog.Logger
	node   *node
	noted  instance.Noted
	note   string // its name, or empty
	store  store.Store
	locks  *lease.Manager
	front  *proxy.Server
	// gone: the pod ends, so nothing waits for its locks.
	gone   chan struct{}
	ending atomic.Bool
	// giveUp leaves what this pod inherits, and has not revoked, to others.
	giveUp func()
}

// open serves a pod.
func (n *node) open(ctx context.Context, v hostfolder.Volume) (_ *pod, err error) {
	id, err := instance.New(v.Pod.Name, n.Version)
	if err != nil {
		return nil, err
	}
	p := &pod{
		key: v.Key(), volume: v, node: n, gone: make(chan struct{}), giveUp: func() {},
		noted: instance.Noted{Pod: string(v.Key()), Namespace: n.policy.namespaceOf(v.Pod), Instance: id},
		log:   n.log.With("pod", v.Pod.Name, "pod_namespace", v.Pod.Namespace),
	}
	p.log.Debug("opening a pod")
	identity := store.Identity{Namespace: p.noted.Namespace, Instance: id, Pod: v.Pod.Name}
	p.store = n.space.View(identity)
	opened := false
	defer func() {
		if !opened { // also after a panic
			p.close()
		}
	}()
	if p.locks, err = lease.New(n.leaseConfig(p), p.store); err != nil {
		return nil, err
	}
	p.front = proxy.New(n.proxyConfig(p))
	n.memory.add(p.key, p.weight)
	if err := p.store.Start(ctx, p.locks.News); err != nil {
		return nil, fmt.Errorf("the store cannot work: %w", err)
	}
	if p.note, err = n.run.Note(p.noted); err != nil {
		p.log.Warn("cannot record that this pod is served: after a crash, its leases end by themselves", "error", err)
	}
	instances, done, giveUp := n.left.of(p.key, p.noted.Namespace)
	p.giveUp = giveUp
	p.locks.ReapPredecessors(instances, done)
	if err := p.locks.Start(ctx); err != nil {
		return nil, err
	}
	if err := p.awaitReady(ctx); err != nil && n.left.take(n.run) {
		return nil, fmt.Errorf("it stays with the other run, because this one cannot serve it yet: %w", err)
	}
	if err := p.front.Start(ctx); err != nil {
		return nil, err
	}
	p.log.Info("serving a pod", "uid", v.Pod.UID, "service_account", v.Pod.ServiceAccount, "namespace", p.noted.Namespace, "instance", id)
	opened = true
	return p, nil
}

// serveAgain takes the pod's path again, because another one has the socket's place, or none. It reports success.
func (p *pod) serveAgain(ctx context.Context) bool {
	switch err := p.front.TakeAgain(ctx); {
	case err == nil:
		p.log.Warn("the pod's socket was missing, and is made again")
		return true
	case errors.Is(err, instance.ErrNotCurrent):
		p.log.Debug("a later run makes the sockets")
	default:
		p.log.Error("cannot make the pod's socket again, trying again", "error", err)
	}
	return false
}

// awaitReady waits for a while until the pod can have locks. Without the store, its calls are refused with the reason.
func (p *pod) awaitReady(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	for {
		err := p.locks.Ready()
		if err == nil {
			return nil
		}
		select {
		case <-limited.Done():
			return err
		case <-time.After(readyPause):
		}
	}
}

func (n *node) leaseConfig(p *pod) lease.Config {
	part := sidecar{Options: n.Options, instance: p.noted.Instance, log: p.log, tel: n.tel}
	part.Config.Namespace, part.Config.Pod = p.noted.Namespace, p.volume.Pod.Name
	cfg := part.leaseConfig()
	cfg.Beat = &n.beat
	cfg.MaxKept = podKeptKeys
	if cfg.CacheSize > podShare { // each pod has its own
		cfg.CacheSize /= podShare
	}
	cfg.Metrics = n.gauges.of(p.key, n.tel.Metrics.Locks)
	return cfg
}

func (n *node) proxyConfig(p *pod) proxy.Config {
	cfg, may := n.Config, n.policy.rightsOf(p.volume.Pod)
	room := maxConns(cfg, memoryLimit(), fileLimit(), filesOnNode, slog.New(slog.DiscardHandler))
	return proxy.Config{
		Locks: p.locks, Logger: p.log, Version: n.Version, Namespace: p.noted.Namespace, TTL: cfg.TTL,
		AllowForce: may.Force, OneNamespace: !may.OtherNamespaces,
		Namespaces: func() bool { return may.OtherNamespaces && showsNamespaces(p.store) },
		Details:    func() map[string]string { return store.Details(p.store) },
		Tracer:     n.tel.Tracer, Metrics: n.tel.Metrics.Calls,
		Socket: n.folder.Socket(p.key), SocketMode: podSocketMode, TakeOver: n.run.IfCurrent,
		Beside: besides(n.run.Runs, n.run.Name(), p.key), Others: func() ([]string, error) { return n.others(p.key) },
		MaxConns: max(1, room/podShare), Room: n.room, MaxBody: cfg.MaxBody, MaxBodies: int(min(memoryLimit()/bodyShare, maxBodies) / podShare),
		MemoryLow: func() bool { return n.memory.refuses(p.key) },
	}
}

func showsNamespaces(st store.Store) bool {
	e, err := store.As[store.Elsewhere](st, "")
	return err == nil && e.MayShowNamespaces() == nil
}

func (p *pod) isEnding() bool { return p.ending.Load() }

// beginEnd reports whether the caller must end the pod.
func (p *pod) beginEnd() bool {
	if p.ending.Swap(true) {
		return false
	}
	close(p.gone)
	return true
}

// leave returns when the pod's part may end: when another run has the path, and the pod holds no locks here and waits for none, or at the end of the
// drain timeout. Before that end, nothing more is granted for a while, so a pod that always holds some lock can release it, and goes on with the
// other run. If no other run takes the path within patience, this one grants nothing more, and waits a shorter time.
func (p *pod) leave(hurry context.Context, patience time.Duration) {
	const pause = 20 * time.Millisecond
	began, left, drained := time.Now(), false, false
	for {
		waited := time.Since(began)
		if !left && p.front.IsReplaced() {
			p.front.Leave()
			left = true
			p.log.Info("another run serves this pod: this one serves the sessions that hold locks, or wait for some")
		}
		limit := p.node.Config.DrainTimeout
		last := limit - min(aloneDrain, limit/2)
		if !left {
			limit, last = min(limit, aloneDrain)+patience, patience
		}
		switch idle := p.locks.Unused(); {
		case drained && idle:
			return
		case !drained && (left && idle || waited >= last): // calls that are on their way get their locks, and are waited for
			p.locks.Drain()
			drained = true
			p.log.Debug("this run grants this pod nothing more")
		}
		if waited >= limit {
			p.log.Warn("sessions still hold locks after the drain timeout; releasing them")
			return
		}
		select {
		case <-hurry.Done():
			p.log.Warn("second request to stop while sessions may hold locks; releasing them")
			return
		case <-p.gone:
			return
		case <-time.After(pause):
		}
	}
}

// close ends the pod's sessions, releases their locks, and closes its connections. Each part ends, whatever becomes of the others.
func (p *pod) close() {
	for _, part := range []struct {
		name string
		end  func()
	}{
		{"its locks", p.stopLocks},
		{"its note", p.forgetNote},
		{"its metrics", func() { p.node.gauges.forget(p.key) }},
		{"its part of the memory", func() { p.node.memory.forget(p.key) }},
		{"its connections", p.stopFront},
		{"its view of the store", p.store.Stop},
	} {
		func() {
			defer p.node.contain(p.log, "the end of a pod: "+part.name)
			part.end()
		}()
	}
}

// stopLocks and stopFront stop what open has made.
func (p *pod) stopLocks() {
	if p.locks != nil {
		p.locks.Stop()
	}
}

func (p *pod) stopFront() {
	if p.front != nil {
		p.front.Stop()
	}
}

// weight reckons the memory that the pod takes by its locks and its connections. A waiting call has one.
func (p *pod) weight() int64 {
	locks, bytes := p.locks.Held()
	return int64(locks)*lockMemory + bytes + int64(p.front.Connections())*connMemory
}

// forgetNote records that the pod has no leases any more, if that is so.
func (p *pod) forgetNote() {
	p.giveUp()
	if p.note == "" || !p.locks.LeftNothing() {
		return
	}
	if err := p.node.run.Forget(p.note); err != nil {
		p.log.Warn("cannot record that this pod has no leases any more", "error", err)
	}
}
