package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// etcdHeld measures what many locks cost that are only held, and what a sidecar costs that does nothing. The server counts
// the requests.
func (b *bench) etcdHeld() ([]result, error) {
	const (
		sessions, locksEach = 100, 1000
		watched             = 6 * renewInterval
	)
	server, address, err := b.startPeer(startEtcd)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	defer server.stop()
	o := etcdAPI{address}
	sidecar, err := b.sidecar("etcdheld", "STORE_URL=etcd://"+address)
	if err != nil {
		return nil, err
	}
	defer sidecar.stop()
	if err := b.rest(renewInterval); err != nil {
		return nil, err
	}
	idle, anonymous := sidecar.memory()
	conns, err := dialMany([]string{sidecar.socket}, sessions)
	defer closeAll(conns) // first of all: a sidecar with locks drains them
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := onEach(conns, func(c *conn, i int) error { return c.hold(b, i, locksEach) }); err != nil {
		return nil, err
	}
	b.log.Printf("etcd P5 %d locks acquired in %.1f s", sessions*locksEach, time.Since(began).Seconds())
	if err := b.rest(renewInterval); err != nil {
		return nil, err
	}
	before, err := o.requests()
	if err != nil {
		return nil, err
	}
	used, err := sidecar.cpu()
	if err != nil {
		return nil, err
	}
	began = time.Now()
	if err := b.rest(watched); err != nil {
		return nil, err
	}
	after, err := o.requests()
	if err != nil {
		return nil, err
	}
	now, err := sidecar.cpu()
	if err != nil {
		return nil, err
	}
	share := (now - used).Seconds() / time.Since(began).Seconds()
	rss, _ := sidecar.memory()
	all, leases, bound := int64(0), after.leases, renewalsIn(watched)
	for method, n := range after.handled {
		all += n - before.handled[method]
	}
	renewals := after.handled["LeaseKeepAlive"] - before.handled["LeaseKeepAlive"]
	b.log.Printf("etcd P5 %d locks held for %s: %d requests, %d of them keep-alives; leases of etcd: %d; %.2f%% of a core; %.1f MiB resident, %.1f MiB without locks, %.1f MiB of it anonymous",
		sessions*locksEach, watched, all, renewals, leases, share*100, float64(rss)/mib, float64(idle)/mib, float64(anonymous)/mib)
	row := func(id, what, figure, goal string, reached bool) result {
		return result{id: "etcd " + id, what: what, figure: figure, peer: none, ratio: none, goal: goal, reached: reached}
	}
	return []result{
		row("P5", fmt.Sprintf("%d locks of %d sessions: keep-alives in %d intervals (%s), counted by etcd", sessions*locksEach, sessions, watched/renewInterval, watched),
			fmt.Sprintf("%d (%d requests in all; leases: %d)", renewals, all, leases),
			fmt.Sprintf("at most %d: one an interval for each lease, each up to a tenth early", bound*leases), renewals >= 1 && renewals <= bound*leases),
		row("P5", "processor time of the sidecar", fmt.Sprintf("%.2f%% of a core", share*100), "less than 1%", share < 0.01),
		row("P5", "resident memory at the end", fmt.Sprintf("%.1f MiB", float64(rss)/mib), none, true),
		row("P8", "idle sidecar, resident memory", fmt.Sprintf("%.1f MiB", float64(idle)/mib), "at most 25 MB", idle <= 25e6),
		row("P8", "of it anonymous", fmt.Sprintf("%.1f MiB", float64(anonymous)/mib), "at most 10 MB", anonymous <= 10e6),
	}, nil
}

// requests are those that etcd says it has handled, by method, and its leases. A sidecar's keep-alive is a stream of its own.
type requests struct {
	handled map[string]int64
	leases  int64
}

func (o etcdAPI) requests() (r requests, err error) {
	r.handled = map[string]int64{}
	answer, err := http.Get("http://" + o.address + "/metrics")
	if err != nil {
		return r, err
	}
	defer func() { _ = answer.Body.Close() }()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		labels, ok := strings.CutPrefix(name, "grpc_server_handled_total{")
		if !ok {
			continue
		}
		_, method, _ := strings.Cut(labels, `grpc_method="`)
		method, _, _ = strings.Cut(method, `"`)
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return r, fmt.Errorf("%s: %w", name, err)
		}
		r.handled[method] += int64(n)
	}
	var leases struct {
		Leases []struct {
			ID string `json:"ID"`
		} `json:"leases"`
	}
	err = o.ask("/v3/lease/leases", map[string]string{}, &leases)
	r.leases = int64(len(leases.Leases))
	return r, err
}

// revision is etcd's. It grows with each change.
func (o etcdAPI) revision() (int64, error) {
	var answer struct {
		Header struct {
			Revision int64 `json:"revision,string"`
		} `json:"header"`
	}
	err := o.ask("/v3/kv/range", map[string][]byte{"key": []byte("bench")}, &answer)
	return answer.Header.Revision, err
}

// ask sends a request to etcd's API in JSON.
func (o etcdAPI) ask(path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	r, err := http.Post("http://"+o.address+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(r.Body)
		return fmt.Errorf("etcd, %s: %s %s", path, r.Status, text)
	}
	return json.NewDecoder(r.Body).Decode(answer)
}
