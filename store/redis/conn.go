package redis

import (
	"context"
	"net"
	"time"

	"github.com/redis/go-redis/extra/redisotel/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// maxRedirects is how often a call follows a cluster's answers that another server has the slot, or will have it soon.
	maxRedirects = 8
	// redirectPause limits the pause before such a repetition.
	redirectPause = 200 * time.Millisecond
	idleTime      = 5 * time.Minute
)

type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

func init() { goredis.SetLogger(noLog{}) } //nolint:gochecknoinits // the library writes to stderr; what matters comes as an error

// connect makes the client. It does not wait for a server.
func (b *Server) connect() goredis.UniversalClient {
	t, limit := b.target, b.config.Timeout
	if t.kind == cluster {
		return goredis.NewClusterClient(&goredis.ClusterOptions{
			Addrs: t.hosts, MaxRedirects: maxRedirects, MaxRetries: -1, MaxRetryBackoff: redirectPause,
			NewClient: func(o *goredis.Options) *goredis.Client { return b.hooked(goredis.NewClient(o)) },
			Protocol:  2, CredentialsProviderContext: b.credentials, TLSConfig: t.tls, ContextTimeoutEnabled: true,
			DialTimeout: limit, ReadTimeout: limit, WriteTimeout: limit, DisableIdentity: true,
			ReadBufferSize: bufferSize, WriteBufferSize: bufferSize, PoolSize: b.config.MaxConns, ConnMaxIdleTime: idleTime,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
	}
	if t.kind == sentinel {
		return b.hooked(goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: t.master, SentinelAddrs: t.hosts, SentinelUsername: t.sentinelUsername, SentinelPassword: t.sentinelPassword,
			MaxRetries: -1, Protocol: 2, CredentialsProviderContext: b.credentials, DB: t.db, TLSConfig: t.tls, ContextTimeoutEnabled: true,
			DialTimeout: limit, DialerRetries: 1, ReadTimeout: limit, WriteTimeout: limit, DisableIdentity: true,
			ReadBufferSize: bufferSize, WriteBufferSize: bufferSize, PoolSize: b.config.MaxConns, ConnMaxIdleTime: idleTime,
		}))
	}
	return b.hooked(goredis.NewClient(&goredis.Options{
		Addr: t.hosts[0], MaxRetries: -1, Protocol: 2, CredentialsProviderContext: b.credentials, DB: t.db, TLSConfig: t.tls,
		ContextTimeoutEnabled: true, DialTimeout: limit, DialerRetries: 1, ReadTimeout: limit, WriteTimeout: limit, DisableIdentity: true,
		ReadBufferSize: bufferSize, WriteBufferSize: bufferSize, PoolSize: b.config.MaxConns, ConnMaxIdleTime: idleTime,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}))
}

// hooked adds hooks to the client of one server.
func (b *Server) hooked(c *goredis.Client) *goredis.Client {
	c.AddHook(once{})
	if b.config.Tracers != nil {
		// A span names the command and the server. It contains no arguments.
		_ = redisotel.InstrumentTracing(c, redisotel.WithTracerProvider(onlyRecorded{TracerProvider: b.config.Tracers}),
			redisotel.WithDBStatement(false), redisotel.WithCallerEnabled(false)) // fails only for other types of clients
	}
	return c
}

// credentials returns user and password as they are now.
func (b *Server) credentials(context.Context) (user, password string, err error) {
	if b.config.Again == nil {
		return b.target.username, b.target.password, nil
	}
	now, err := b.config.Again()
	if err != nil {
		return "", "", err
	}
	t, err := parse(now)
	return t.username, t.password, err
}

// once marks the error of a call that may have been carried out, so that the library does not repeat the call.
type once struct{}

func (once) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		if err != nil {
			err = &notSentError{err}
		}
		return conn, err
	}
}

func (once) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { return mark(next(ctx, cmd)) }
}

func (once) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error { return mark(next(ctx, cmds)) }
}
