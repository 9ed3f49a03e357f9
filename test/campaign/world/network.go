package world

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
)

// Network is the way of one sidecar to the database.
type Network struct {
	// Statements cuts connections at moments of a statement.
	Statements *pgproxy.Proxy

	bytes *toxiproxy.Proxy
}

// newNetwork puts two proxies before a database that listens on TCP.
func newNetwork(tb testing.TB, server *toxiproxy.ApiServer, name, databaseURL string) (*Network, error) {
	address, err := url.Parse(databaseURL)
	if err != nil {
		return nil, err
	}
	proxy := toxiproxy.NewProxy(server, name, "127.0.0.1:0", address.Host)
	if err := proxy.Start(); err != nil {
		return nil, err
	}
	tb.Cleanup(proxy.Stop)
	address.Host = proxy.Listen
	return &Network{Statements: pgproxy.Start(tb, address.String()), bytes: proxy}, nil
}

func newToxiproxy() *toxiproxy.ApiServer {
	zerolog.SetGlobalLevel(zerolog.Disabled) // some of it speaks without being asked
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
}

// URL leads to the database.
func (n *Network) URL() string { return n.Statements.URL() }

// Break closes all connections, returns how many there were, and refuses new ones until
// Mend.
func (n *Network) Break() int {
	cut := n.Statements.CutAll()
	n.bytes.Stop()
	return cut
}

// Mend ends Break.
func (n *Network) Mend() error { return n.bytes.Start() }

// Spoil adds a toxic to a direction: what toxiproxy calls upstream goes to the database.
// It returns what takes it away again.
func (n *Network) Spoil(kind, stream string, attributes map[string]any) (heal func() error, err error) {
	var pairs []string
	for name, value := range attributes {
		pairs = append(pairs, fmt.Sprintf("%q:%v", name, value))
	}
	name := kind + "-" + stream
	toxic := fmt.Sprintf(`{"name":%q,"type":%q,"stream":%q,"attributes":{%s}}`, name, kind, stream, strings.Join(pairs, ","))
	if _, err := n.bytes.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		return nil, fmt.Errorf("toxic %s: %w", toxic, err)
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return n.bytes.Toxics.RemoveToxic(ctx, name)
	}, nil
}

// Probe goes the sidecar's way to the database, with a connection of its own, and
// returns how long it took.
func (n *Network) Probe(limit time.Duration) (time.Duration, error) {
	return probe(n.URL(), limit)
}

// probe connects and asks for nothing.
func probe(address string, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return time.Since(began), err
	}
	_, err = conn.Exec(ctx, "SELECT")
	took := time.Since(began)
	return took, errors.Join(err, conn.Close(ctx))
}
