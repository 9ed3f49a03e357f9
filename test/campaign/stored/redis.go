package stored

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/store/redis"
)

// Redis looks at what sidecars of the default namespace keep on one server. connect connects to the present primary.
func Redis(connect func(ctx context.Context) (*goredis.Client, error)) View {
	return records{&redisServer{connect: connect}}
}

type redisServer struct {
	connect func(ctx context.Context) (*goredis.Client, error)
	client  *goredis.Client
}

// all returns records and living leases, as names and values. The server does nothing else meanwhile.
const all = `local out = {}
for _, name in ipairs(redis.call('KEYS', ARGV[1] .. '[kl]:*')) do
  out[#out + 1] = name
  out[#out + 1] = redis.call('GET', name) or ''
end
return out`

func (s *redisServer) look(ctx context.Context) (*seen, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if s.client == nil {
		client, err := s.connect(ctx)
		if err != nil {
			return nil, err
		}
		s.client = client
	}
	pairs, err := s.client.EvalRO(ctx, all, nil, redis.Prefix()).StringSlice()
	if err != nil {
		s.Close()
		return nil, err
	}
	found := newSeen()
	for i := 0; i+1 < len(pairs); i += 2 {
		kind, name, _ := strings.Cut(strings.TrimPrefix(pairs[i], redis.Prefix()), ":")
		if pairs[i+1] == "" {
			continue // it has just ended
		}
		if err := found.redis(kind, name, pairs[i+1]); err != nil {
			return nil, fmt.Errorf("%s: %w", pairs[i], err)
		}
	}
	slices.Sort(found.names)
	return found, nil
}

// redis takes one of the keys: store/redis documents them.
func (s *seen) redis(kind, name, value string) error {
	if kind == "k" {
		kept, err := redis.Record(name, value)
		if err != nil {
			return err
		}
		return s.record(name, &kept)
	}
	id, err := uuid.FromBytes([]byte(name))
	if err != nil {
		return err
	}
	s.alive[id] = true
	if _, rest, _ := strings.Cut(value, " "); rest != "" {
		if _, instance, _ := strings.Cut(rest, " "); instance != "" {
			s.opened[id] = instance
		}
	}
	return nil
}

// Close ends the connection.
func (s *redisServer) Close() {
	if s.client != nil {
		_ = s.client.Close()
		s.client = nil
	}
}
