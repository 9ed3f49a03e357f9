package stored

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/store/redis"
)

// Redis looks at what sidecars of the default namespace keep on one server. connect connects to the present primary.
func Redis(connect func() *goredis.Client) View {
	return records{&redisServers[*goredis.Client]{connect: connect, each: func(ctx context.Context, c *goredis.Client, do func(context.Context, *goredis.Client) error) error {
		return do(ctx, c)
	}}}
}

// RedisCluster looks at what they keep in a cluster.
func RedisCluster(connect func() *goredis.ClusterClient) View {
	return records{&redisServers[*goredis.ClusterClient]{connect: connect, each: func(ctx context.Context, c *goredis.ClusterClient, do func(context.Context, *goredis.Client) error) error {
		return c.ForEachMaster(ctx, do)
	}}}
}

// redisServers are those that a client leads to. each calls do for each that takes writes, maybe at the same time.
type redisServers[C interface {
	comparable
	Close() error
}] struct {
	connect func() C
	each    func(ctx context.Context, client C, do func(context.Context, *goredis.Client) error) error
	client  C
}

// all returns records and living leases, as names and values. The server does nothing else meanwhile.
const all = `local out = {}
for _, name in ipairs(redis.call('KEYS', ARGV[1])) do
  out[#out + 1] = name
  out[#out + 1] = redis.call('GET', name) or ''
end
return out`

func (s *redisServers[C]) look(ctx context.Context) ([]*seen, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var none C
	if s.client == none {
		s.client = s.connect()
	}
	var mu sync.Mutex
	parts := map[string]*seen{} // by partition
	err := s.each(ctx, s.client, func(ctx context.Context, c *goredis.Client) error {
		pairs, err := c.EvalRO(ctx, all, nil, redis.KeyPrefix+"{*}:[kl]:*").StringSlice()
		mu.Lock()
		defer mu.Unlock()
		for i := 0; err == nil && i+1 < len(pairs); i += 2 {
			tag, rest, _ := strings.Cut(strings.TrimPrefix(pairs[i], redis.KeyPrefix), ":")
			kind, name, _ := strings.Cut(rest, ":")
			if parts[tag] == nil {
				parts[tag] = newSeen()
			}
			if pairs[i+1] == "" {
				continue // it has just ended
			}
			if err = parts[tag].redis(kind, name, pairs[i+1]); err != nil {
				err = fmt.Errorf("%s: %w", pairs[i], err)
			}
		}
		return err
	})
	if err != nil {
		s.Close()
		return nil, err
	}
	var found []*seen
	for _, part := range parts {
		slices.Sort(part.names)
		found = append(found, part)
	}
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

// Close ends the connections.
func (s *redisServers[C]) Close() {
	var none C
	if s.client != none {
		_ = s.client.Close()
		s.client = none
	}
}
