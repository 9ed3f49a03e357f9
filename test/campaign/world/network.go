package world

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
)

// Network is the way of one sidecar to the store.
type Network struct {
	// Statements cuts connections at moments of a statement; nil on etcd.
	Statements *pgproxy.Proxy
	// Greeting is the least number of bytes that a server answers to a probe.
	Greeting int

	url   string
	ways  []way // to each server
	probe func(ctx context.Context, url string) error
}

// way leads to one server: through a proxy that can cut connections, and then one that can spoil them.
type way struct {
	front interface{ CutAll() int }
	bytes *toxiproxy.Proxy
}

// spoilable puts a proxy before a server that listens on TCP.
func spoilable(tb testing.TB, server *toxiproxy.ApiServer, name, address string) (*toxiproxy.Proxy, error) {
	proxy := toxiproxy.NewProxy(server, name, "127.0.0.1:0", address)
	if err := proxy.Start(); err != nil {
		return nil, err
	}
	tb.Cleanup(proxy.Stop)
	return proxy, nil
}

func newToxiproxy() *toxiproxy.ApiServer {
	zerolog.SetGlobalLevel(zerolog.Disabled) // some of it speaks without being asked
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
}

// URL leads to the store.
func (n *Network) URL() string { return n.url }

// CutAll closes all connections, and returns how many there were.
func (n *Network) CutAll() (cut int) {
	for _, w := range n.ways {
		cut += w.front.CutAll()
	}
	return cut
}

// Break closes all connections, returns how many there were, and refuses new ones until
// Mend.
func (n *Network) Break() int {
	cut := n.CutAll()
	for _, w := range n.ways {
		w.bytes.Stop()
	}
	return cut
}

// Mend ends Break.
func (n *Network) Mend() error {
	var errs []error
	for _, w := range n.ways {
		errs = append(errs, w.bytes.Start())
	}
	return errors.Join(errs...)
}

// Spoil adds a toxic to a direction: what toxiproxy calls upstream goes to the store.
// It returns what takes it away again.
func (n *Network) Spoil(kind, stream string, attributes map[string]any) (heal func() error, err error) {
	var pairs []string
	for name, value := range attributes {
		pairs = append(pairs, fmt.Sprintf("%q:%v", name, value))
	}
	name := kind + "-" + stream
	toxic := fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"attributes":{%s}}`, name, kind, stream, strings.Join(pairs, ","))
	spoilt := 0
	heal = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		var errs []error
		for _, w := range n.ways[:spoilt] {
			errs = append(errs, w.bytes.Toxics.RemoveToxic(ctx, name))
		}
		return errors.Join(errs...)
	}
	for _, w := range n.ways {
		if _, err := w.bytes.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			return nil, errors.Join(fmt.Errorf("toxic %s: %w", toxic, err), heal())
		}
		spoilt++
	}
	return heal, nil
}

// Probe goes the sidecar's way to the store, with a connection of its own, and
// returns how long it took.
func (n *Network) Probe(limit time.Duration) (time.Duration, error) {
	return timed(limit, func(ctx context.Context) error { return n.probe(ctx, n.url) })
}

func timed(limit time.Duration, f func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	err := f(ctx)
	return time.Since(began), err
}
