package etcd

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/locksidecar/locksidecar/store/cas"
	pb "github.com/locksidecar/locksidecar/store/etcd/internal/etcdpb"
)

// The methods of etcd's API that are used.
const (
	methodTxn        = "/etcdserverpb.KV/Txn"
	methodGrant      = "/etcdserverpb.Lease/LeaseGrant"
	methodRevoke     = "/etcdserverpb.Lease/LeaseRevoke"
	methodKeepAlive  = "/etcdserverpb.Lease/LeaseKeepAlive"
	methodTimeToLive = "/etcdserverpb.Lease/LeaseTimeToLive"
	methodWatch      = "/etcdserverpb.Watch/Watch"
	methodStatus     = "/etcdserverpb.Maintenance/Status"
	methodLogin      = "/etcdserverpb.Auth/Authenticate"
)

const (
	// pingAfter and pingLimit find a connection that is cut. A server refuses pings every 5 seconds or more often.
	pingAfter = 10 * time.Second
	pingLimit = 3 * time.Second
)

// conn is a connection to etcd's servers: each request goes to the next of those in use.
type conn struct {
	target target
	grpc   *grpc.ClientConn
	names  *manual.Resolver
	token  atomic.Pointer[string] // of the user; nil without one

	mu    sync.Mutex
	inUse []string
}

// connect makes a connection. It does not wait for a server.
func connect(t target) (*conn, error) {
	c := &conn{target: t, names: manual.NewBuilderWithScheme("etcd"), inUse: t.endpoints}
	c.names.InitialState(addresses(t.endpoints))
	var err error
	c.grpc, err = grpc.NewClient("etcd:///", append(options(t.tls), grpc.WithResolvers(c.names))...)
	return c, err
}

func options(secure *tls.Config) []grpc.DialOption {
	creds := insecure.NewCredentials()
	if secure != nil {
		creds = credentials.NewTLS(secure.Clone())
	}
	return []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)), // else an answer could be refused after its request was carried out
		grpc.WithStatsHandler(sendNoter{}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingLimit}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: cas.FirstPause, Multiplier: 2, Jitter: 0.5, MaxDelay: cas.LongPause},
			MinConnectTimeout: 2 * patience,
		}),
	}
}

// addresses names the host of each endpoint for its certificate.
func addresses(endpoints []string) resolver.State {
	var state resolver.State
	for _, endpoint := range endpoints {
		host, _, _ := net.SplitHostPort(endpoint)
		state.Addresses = append(state.Addresses, resolver.Address{Addr: endpoint, ServerName: host})
	}
	return state
}

func (c *conn) close() { _ = c.grpc.Close() }

// use makes requests go to these endpoints.
func (c *conn) use(endpoints []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(endpoints, c.inUse) {
		c.inUse = endpoints
		c.names.UpdateState(addresses(endpoints))
	}
}

// outgoing adds what etcd reads from a request's metadata: a server without a leader refuses the request, and the user.
func (c *conn) outgoing(ctx context.Context) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, "hasleader", "true")
	if token := c.token.Load(); token != nil {
		ctx = metadata.AppendToOutgoingContext(ctx, "token", *token)
	}
	return ctx
}

// login gets a token for the user of the URL, if there is one.
func (c *conn) login(ctx context.Context) error {
	if c.target.username == "" {
		return nil
	}
	answer := &pb.LoggedIn{}
	err := c.grpc.Invoke(ctx, methodLogin, &pb.Login{Name: c.target.username, Password: c.target.password}, answer)
	if err == nil {
		c.token.Store(&answer.Token)
	}
	return err
}

// loggedIn sends a request again after a login if it was refused for want of one.
func (c *conn) loggedIn(ctx context.Context, send func() error) error {
	err := send()
	if c.target.username == "" || !needsLogin(err) {
		return err
	}
	if err := c.login(ctx); err != nil {
		return err
	}
	return send()
}

// call sends a request and waits for the answer.
func (c *conn) call(ctx context.Context, method string, request, answer any, options ...grpc.CallOption) error {
	return c.grpc.Invoke(c.outgoing(ctx), method, request, answer, options...)
}

func (c *conn) txn(ctx context.Context, ops ...*pb.Op) (*pb.Done, error) {
	answer := &pb.Done{}
	return answer, c.call(ctx, methodTxn, &pb.Txn{Success: ops}, answer)
}

// stream opens a stream with its first request. It ends with ctx.
func (c *conn) stream(ctx context.Context, method string, request any) (grpc.ClientStream, error) {
	stream, err := c.grpc.NewStream(c.outgoing(ctx), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return nil, err
	}
	return stream, stream.SendMsg(request)
}

// health asks one server how it is, on a connection of its own.
func health(ctx context.Context, t target, endpoint string) (*pb.Status, error) {
	t.endpoints = []string{endpoint}
	c, err := connect(t)
	if err != nil {
		return nil, err
	}
	defer c.close()
	answer := &pb.Status{}
	return answer, c.grpc.Invoke(ctx, methodStatus, &pb.Empty{}, answer, grpc.WaitForReady(true))
}
