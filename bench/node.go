package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
)

const (
	// nodePods is more than a kubelet runs by default.
	nodePods = 200
	// nodeWindow is for how long idle pods are looked at: six renewal intervals.
	nodeWindow = 30 * time.Second
	// nodeCalls are the pairs and hand-offs of a measurement, one after the other.
	nodeCalls = 500
	// noisyConns are the connections of a pod that acquires and releases as fast as it can.
	noisyConns = 16
)

// nodeSide is what serves the pods: a sidecar each, or one lock server.
type nodeSide struct {
	name      string
	processes []*process
	sockets   []string
}

func (s *nodeSide) stop() {
	var all sync.WaitGroup
	for _, p := range s.processes {
		all.Go(p.stop)
	}
	all.Wait()
}

// nodes compares the sidecars of 200 pods of a node with one lock server for all: what they cost while each pod holds a lock and does nothing else, then a pair of
// one pod, hand-offs between two pods, and the pairs of a quiet pod beside a noisy one. All have KEEP=0.
func (b *bench) nodes() error {
	pods := nodePods
	if b.most != 0 {
		pods = b.most
	}
	var t strings.Builder
	t.WriteString("| | pods | processes, MiB | anonymous, MiB | connections | listeners | statements a second | PostgreSQL, ms a second | processes, ms a second " +
		"| pair, µs (p50, p99) | hand-off, µs (p50, p99) | pair of a quiet pod beside a noisy one, µs (p50, p99) | pairs of the noisy pod a second |\n|---|" + strings.Repeat("--:|", 12) + "\n")
	for _, start := range []func(string, int) (*nodeSide, error){b.sidecarEach, b.lockServer} {
		line, err := b.nodeLine(start, pods)
		if err != nil {
			return err
		}
		b.log.Print("node: " + line)
		t.WriteString(line + "\n")
	}
	fmt.Println("\n" + t.String())
	return nil
}

// sidecarEach starts a sidecar for each pod.
func (b *bench) sidecarEach(url string, pods int) (*nodeSide, error) {
	s := &nodeSide{name: "a sidecar each"}
	for i := range pods {
		p, err := b.sidecar(fmt.Sprint("pod", i), "STORE_URL="+url, "POD_NAME=pod", "NAMESPACE=shop")
		if err != nil {
			s.stop()
			return nil, err
		}
		s.processes, s.sockets = append(s.processes, p), append(s.sockets, p.socket)
	}
	return s, nil
}

// lockServer starts one lock server, in a folder with the descriptions that `locksidecar csi` writes.
func (b *bench) lockServer(url string, pods int) (*nodeSide, error) {
	folder := hostfolder.Folder(filepath.Join(b.folder, "n"))
	if err := folder.Make(os.Getuid()); err != nil {
		return nil, err
	}
	s := &nodeSide{name: "one lock server"}
	for i := range pods {
		name := fmt.Sprint("pod-", i)
		v := hostfolder.Volume{ID: name, Target: "/" + name, Pod: hostfolder.Pod{Namespace: "shop", Name: name, UID: name}}
		if err := errors.Join(folder.MakePod(v.Key(), os.Getuid()), folder.Describe(v, os.Getgid())); err != nil {
			return nil, err
		}
		s.sockets = append(s.sockets, folder.Socket(v.Key()))
	}
	cmd := exec.Command(b.binary, "node")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LOCKSIDECAR_LOG_LEVEL=error", "LOCKSIDECAR_NODE_FOLDER=" + string(folder),
		"LOCKSIDECAR_STORE_URL=" + url, "LOCKSIDECAR_KEEP=0", "LOCKSIDECAR_MAX_SESSIONS=5000", "GOMEMLIMIT=800MiB",
	}
	p, err := b.start(s.sockets[pods-1], "/readyz", cmd)
	if err != nil {
		return nil, err
	}
	s.processes = []*process{p}
	return s, nil
}

func (b *bench) nodeLine(start func(string, int) (*nodeSide, error), pods int) (string, error) {
	server, err := b.fleetPostgres(pods)
	if err != nil {
		return "", err
	}
	defer server.stop()
	if _, err := server.counts(); err != nil {
		return "", err
	}
	s, err := start(server.url, pods)
	if err != nil {
		return "", err
	}
	defer s.stop()
	var apps []*conn
	defer func() {
		for _, c := range apps {
			c.close()
		}
	}()
	for i, socket := range s.sockets {
		c, err := b.dialPatiently(socket)
		if err != nil {
			return "", err
		}
		apps = append(apps, c)
		if _, err := c.acquire(podKey(i), nil); err != nil {
			return "", err
		}
	}
	idle, err := b.idleNode(server, s)
	if err != nil {
		return "", err
	}
	pair, err := b.nodePairs(s.sockets[0])
	if err != nil {
		return "", err
	}
	handOff, err := b.nodeHandOffs(s.sockets[0], s.sockets[1])
	if err != nil {
		return "", err
	}
	quiet, noise, err := b.besideNoise(s.sockets[0], s.sockets[1])
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("| %s | %d | %s | %s | %s | %s | %.0f |", s.name, pods, idle, quantiles(pair), quantiles(handOff), quantiles(quiet), noise), nil
}

// dialPatiently waits until a pod can have locks.
func (b *bench) dialPatiently(socket string) (*conn, error) {
	for range 2000 {
		if c, err := dial(socket); err == nil {
			if c.roundTrip([]byte("GET /readyz HTTP/1.1\r\nHost: b\r\n\r\n")) == nil && c.status == 200 {
				return c, nil
			}
			c.close()
		}
		if err := b.rest(10 * time.Millisecond); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s is not ready", socket)
}

// idleNode measures what pods cost that hold one lock each.
func (b *bench) idleNode(server *storeServer, s *nodeSide) (string, error) {
	if err := b.rest(nodeWindow / 3); err != nil { // the work of the start is over
		return "", err
	}
	used := func() (own time.Duration, err error) {
		for _, p := range s.processes {
			one, failed := p.cpu()
			own, err = own+one, errors.Join(err, failed)
		}
		return own, err
	}
	own, err := used()
	if err != nil {
		return "", err
	}
	before, err := server.counts()
	if err != nil {
		return "", err
	}
	database, err := server.cpu()
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := b.rest(nodeWindow); err != nil {
		return "", err
	}
	sec := time.Since(began).Seconds()
	ownAfter, err := used()
	if err != nil {
		return "", err
	}
	databaseAfter, err := server.cpu()
	if err != nil {
		return "", err
	}
	after, err := server.counts()
	if err != nil {
		return "", err
	}
	var resident, anonymous int
	for _, p := range s.processes {
		all, own := p.memory()
		resident, anonymous = resident+all, anonymous+own
	}
	return fmt.Sprintf("%d | %d | %d | %d | %.1f | %.1f | %.1f", resident>>20, anonymous>>20, after.connections, after.listeners,
		float64(after.requests-before.requests)/sec, milliseconds(databaseAfter-database)/sec, milliseconds(ownAfter-own)/sec), nil
}

// nodePairs acquires and releases, one after the other.
func (b *bench) nodePairs(socket string) (took []time.Duration, err error) {
	c, err := b.dialPatiently(socket)
	if err != nil {
		return nil, err
	}
	defer c.close()
	var request []byte
	for i := range nodeCalls {
		began := time.Now()
		if request, err = c.acquire(fmt.Sprint("pair:", i), request); err == nil {
			request, err = c.release(fmt.Sprint("pair:", i), request)
		}
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// nodeHandOffs passes one key between two pods. Each hand-off is from the release that is sent until the other pod has read its grant.
func (b *bench) nodeHandOffs(one, other string) (took []time.Duration, err error) {
	holder, err := b.dialPatiently(one)
	if err != nil {
		return nil, err
	}
	defer holder.close()
	waiter, err := b.dialPatiently(other)
	if err != nil {
		return nil, err
	}
	defer waiter.close()
	const key = "handoff:1"
	if _, err := holder.acquire(key, nil); err != nil {
		return nil, err
	}
	for range nodeCalls / 5 {
		granted := make(chan error, 1)
		var at time.Time
		go func() {
			_, err := waiter.call(nil, "PUT", key, []byte(`{"wait_ms":20000}`), 200)
			at = time.Now()
			granted <- err
		}()
		if err := b.rest(20 * time.Millisecond); err != nil { // it waits in the queue
			return nil, err
		}
		began := time.Now()
		if _, err := holder.release(key, nil); err != nil {
			return nil, err
		}
		if err := <-granted; err != nil {
			return nil, err
		}
		took = append(took, at.Sub(began))
		holder, waiter = waiter, holder
	}
	return took, nil
}

// besideNoise measures the pairs of a quiet pod, 20 ms apart, while another one does as many as it can.
func (b *bench) besideNoise(quiet, noisy string) (took []time.Duration, rate float64, err error) {
	var stop atomic.Bool
	var done atomic.Int64
	var noise sync.WaitGroup
	failed := make(chan error, noisyConns)
	for n := range noisyConns {
		noise.Go(func() {
			c, err := dial(noisy)
			if err != nil {
				failed <- err
				return
			}
			defer c.close()
			var request []byte
			for i := 0; !stop.Load(); i++ {
				key := fmt.Sprint("noise:", n, "-", i%100)
				if request, err = c.acquire(key, request); err == nil {
					request, err = c.release(key, request)
				}
				if err != nil {
					failed <- err
					return
				}
				done.Add(1)
			}
		})
	}
	defer func() {
		stop.Store(true)
		noise.Wait()
	}()
	c, err := b.dialPatiently(quiet)
	if err != nil {
		return nil, 0, err
	}
	defer c.close()
	began, before := time.Now(), done.Load()
	var request []byte
	for i := range nodeCalls {
		at := time.Now()
		if request, err = c.acquire(fmt.Sprint("quiet:", i), request); err == nil {
			request, err = c.release(fmt.Sprint("quiet:", i), request)
		}
		if err != nil {
			return nil, 0, err
		}
		took = append(took, time.Since(at))
		if err := b.rest(20 * time.Millisecond); err != nil {
			return nil, 0, err
		}
	}
	rate = float64(done.Load()-before) / time.Since(began).Seconds()
	select {
	case err := <-failed:
		return nil, 0, err
	default:
		return took, rate, nil
	}
}

// quantiles are the median and the 99th percentile, in microseconds.
func quantiles(all []time.Duration) string {
	slices.Sort(all)
	at := func(q float64) int64 { return all[min(len(all)-1, int(q*float64(len(all))))].Microseconds() }
	return fmt.Sprintf("%d, %d", at(0.5), at(0.99))
}
