package stored

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/store/etcd"
)

// Etcd looks at what sidecars of the default namespace keep under a prefix, which has no slash at its end.
func Etcd(connect func() (*clientv3.Client, error), prefix string) View {
	return records{&server{connect: connect, prefix: prefix}}
}

type server struct {
	connect func() (*clientv3.Client, error)
	prefix  string
	client  *clientv3.Client
}

func (s *server) look(ctx context.Context) ([]*seen, error) {
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
	found := newSeen()
	for _, kv := range answer.Get().Kvs {
		kind, name, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), s.prefix+"/"), "/")
		if err := found.add(kind, name, kv.Value, kv.ModRevision); err != nil {
			return nil, fmt.Errorf("%s: %w", kv.Key, err)
		}
	}
	return []*seen{found}, nil
}

// add takes one of etcd's keys: store/etcd documents them.
func (s *seen) add(kind, name string, value []byte, revision int64) error {
	switch kind {
	case "k":
		kept, err := etcd.Record(name, value, revision)
		if err != nil {
			return err
		}
		return s.record(name, &kept)
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
