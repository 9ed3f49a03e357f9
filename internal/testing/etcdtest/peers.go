package etcdtest

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
)

// peers is the network between the nodes. Each node sends its requests to the others through a proxy of its own, so it
// can be cut off in both directions. The nodes' advertised names are known to the proxies only. Go uses no proxy for
// addresses of the same machine.
type peers struct {
	targets map[string]*Node // by advertised name
	servers []*http.Server
	work    sync.WaitGroup

	mu       sync.Mutex
	isolated map[*Node]bool
	under    map[*request]bool
}

// request is one that is under way. Most are streams that never end.
type request struct {
	from, to *Node
	end      context.CancelFunc
}

// separate starts the proxies of nodes, and changes what they advertise.
func separate(nodes []*Node, advertised map[*Node]string) (*peers, error) {
	p := &peers{targets: map[string]*Node{}, isolated: map[*Node]bool{}, under: map[*request]bool{}}
	for _, n := range nodes {
		p.targets[n.name+".invalid"] = n
		advertised[n] = "http://" + n.name + ".invalid:2380"
	}
	for _, n := range nodes {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			p.stop()
			return nil, err
		}
		n.env = []string{"HTTP_PROXY=http://" + listener.Addr().String()}
		server := &http.Server{Handler: p.proxyOf(n), ErrorLog: log.New(io.Discard, "", 0)} //nolint:gosec // its clients are tests
		p.servers = append(p.servers, server)
		p.work.Go(func() { _ = server.Serve(listener) })
	}
	return p, nil
}

// proxyOf serves the requests of one node.
func (p *peers) proxyOf(from *Node) http.Handler {
	forward := &httputil.ReverseProxy{
		FlushInterval: -1, Transport: &http.Transport{}, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Host = strings.TrimPrefix(p.targets[r.In.URL.Hostname()].peer, "http://")
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // closes the connection
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := context.WithCancel(r.Context())
		defer end()
		own := &request{from, p.targets[r.URL.Hostname()], end}
		if own.to == nil || !p.begin(own) {
			panic(http.ErrAbortHandler)
		}
		defer p.over(own)
		forward.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (p *peers) begin(r *request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isolated[r.from] || p.isolated[r.to] {
		return false
	}
	p.under[r] = true
	return true
}

func (p *peers) over(r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.under, r)
}

func (p *peers) stop() {
	for _, server := range p.servers {
		_ = server.Close()
	}
	p.work.Wait()
}

// Isolate cuts a node of a [Separable] cluster off from the other nodes until Rejoin. Its clients still reach it.
func (n *Node) Isolate() {
	p := n.cluster.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isolated[n] = true
	for r := range p.under {
		if r.from == n || r.to == n {
			r.end()
		}
	}
}

// Rejoin ends Isolate.
func (n *Node) Rejoin() {
	p := n.cluster.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.isolated, n)
}
