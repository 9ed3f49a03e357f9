package stored

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/etcd"
	"github.com/locksidecar/locksidecar/store/key"
	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// Etcd looks at what sidecars of the default namespace keep under a prefix, which has no slash at its end.
func Etcd(connect func() (*clientv3.Client, error), prefix string) View {
	return &server{connect: connect, prefix: prefix}
}

type server struct {
	connect func() (*clientv3.Client, error)
	prefix  string
	client  *clientv3.Client
}

// seen is what the server has at one revision.
type seen struct {
	names   []string // of the keys with records, in order
	records map[string]*key.Record
	// alive are the leases that live. opened are those that instances renew, with their instances.
	alive  map[uuid.UUID]bool
	opened map[uuid.UUID]string
	// own are the leases of the engine's own records, which elect the instance that sweeps.
	own map[uuid.UUID]bool
}

func (s *server) look(ctx context.Context) (*seen, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if s.client == nil {
		client, err := s.connect()
		if err != nil {
			return nil, err
		}
		s.client = client
	}
	all := clientv3.OpGet(s.prefix+"/", clientv3.WithPrefix())
	answer, err := s.client.Do(clientv3.WithRequireLeader(ctx), all)
	if err != nil {
		s.Close()
		return nil, err
	}
	found := &seen{records: map[string]*key.Record{}, alive: map[uuid.UUID]bool{}, opened: map[uuid.UUID]string{}, own: map[uuid.UUID]bool{}}
	for _, kv := range answer.Get().Kvs {
		kind, name, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), s.prefix+"/"), "/")
		if err := found.add(kind, name, kv.Value, kv.ModRevision); err != nil {
			return nil, fmt.Errorf("%s: %w", kv.Key, err)
		}
	}
	return found, nil
}

// add takes one of etcd's keys: store/etcd documents them.
func (s *seen) add(kind, name string, value []byte, revision int64) error {
	switch kind {
	case "k":
		kept, err := etcd.Record(name, value, revision)
		if err != nil {
			return err
		}
		namespace, lock, _ := strings.Cut(name, "/")
		if namespace == "" {
			for _, id := range kept.Leases {
				s.own[id] = true
			}
			return nil
		}
		s.names = append(s.names, lock)
		s.records[lock], err = cas.Decode(&kept)
		return err
	case "l":
		id, err := uuid.Parse(name)
		s.alive[id] = true
		return err
	case "o":
		instance, lease, _ := strings.Cut(name, "/")
		id, err := uuid.Parse(lease)
		if s.opened[id], _ = url.PathUnescape(instance); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the connection.
func (s *server) Close() {
	if s.client != nil {
		_ = s.client.Close()
		s.client = nil
	}
}

func (s *server) Lines(ctx context.Context) (lines []history.Op, err error) {
	found, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range found.names {
		rec := found.records[name]
		if len(rec.Waiters) == 0 {
			continue
		}
		line := history.Op{Kind: history.Line, Sidecar: -1, Key: name, Shared: len(rec.Shares) > 0, Holders: len(rec.Shares)}
		switch {
		case line.Shared:
			line.Limit = rec.Limit
		case rec.Holder.Lease > 0:
			line.Token, line.Attempt, line.Holders = rec.Holder.Token, uuid.UUID(rec.Holder.Attempt).String(), 1
		}
		for i := range rec.Waiters {
			w := &rec.Waiters[i]
			lease := rec.Leases[w.Lease-1].ID
			place := history.Place{Number: w.Order, Lease: lease.String(), Attempt: uuid.UUID(w.Attempt).String(), Dead: !found.alive[lease]}
			if place.ID, err = caller(w.Data); err != nil {
				return nil, err
			}
			line.Line = append(line.Line, place)
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func (s *server) Left(ctx context.Context, pods []string) (left []string, err error) {
	found, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range found.names {
		left = append(left, found.leftOf(name)...)
	}
	for id := range found.alive {
		instance, renewed := found.opened[id]
		runs := slices.ContainsFunc(pods, func(pod string) bool { return strings.HasPrefix(instance, pod+"-") })
		if !found.own[id] && (!renewed || !runs) {
			left = append(left, fmt.Sprintf("lease %s of %q", id, instance))
		}
	}
	slices.Sort(left)
	return left, nil
}

// leftOf is what is left of one key.
func (s *seen) leftOf(name string) (left []string) {
	rec := s.records[name]
	for _, h := range slices.Concat([]key.RecordHolder{rec.Holder}, rec.Shares) {
		for _, n := range []int{h.Lease, h.Hold} {
			if n > 0 && s.alive[rec.Leases[n-1].ID] {
				left = append(left, fmt.Sprintf("lock %s under token %d", name, h.Token))
			}
		}
	}
	for _, w := range slices.Concat(rec.Waiters, rec.Skipped) {
		left = append(left, fmt.Sprintf("waiter %d for %s", w.Order, name))
	}
	for _, g := range rec.Signals {
		left = append(left, fmt.Sprintf("signal %v for %s", g.Signal.Kind, name))
	}
	for range rec.Watchers {
		left = append(left, "watcher of "+name)
	}
	return left
}
