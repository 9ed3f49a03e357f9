package sidecar

import (
	"crypto/tls"
	"fmt"
	"log/slog"

	"github.com/locksidecar/locksidecar/internal/bearer"
	"github.com/locksidecar/locksidecar/internal/certificate"
	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/instance"
	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/telemetry"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/etcd"
	"github.com/locksidecar/locksidecar/store/memory"
	"github.com/locksidecar/locksidecar/store/mysql"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/redis"
)

func (s *sidecar) telemetryOptions() telemetry.Options {
	cfg := s.Config
	return telemetry.Options{
		Lookup: s.Lookup, Version: s.Version, Instance: s.instance, Pod: cfg.Pod, Namespace: cfg.Namespace,
		MaxLinks: cfg.BatchMax, Logger: s.log,
	}
}

// SpaceOptions are what a space needs beside the configuration.
type SpaceOptions struct {
	Log *slog.Logger
	// Telemetry may be nil: no traces and metrics.
	Telemetry *telemetry.Telemetry
	// TooOld is called, perhaps repeatedly, if the database needs a newer program. Nil: no call.
	TooOld func(error)
}

// NewSpace makes the space of a configuration. The caller starts and stops it.
func NewSpace(cfg config.Config, o SpaceOptions) (store.Space, error) {
	if o.Telemetry == nil {
		o.Telemetry = &telemetry.Telemetry{Metrics: &metrics.Set{}}
	}
	if o.TooOld == nil {
		o.TooOld = func(error) {}
	}
	switch cfg.Store.Kind {
	case config.Memory:
		return memory.NewSpace(), nil
	case config.Etcd:
		return onEtcd(cfg, o)
	case config.Redis:
		return onRedis(cfg, o)
	case config.MySQL:
		return onMySQL(cfg, o)
	case config.Postgres:
	}
	return postgres.NewSpace(postgres.Config{
		URL: cfg.Store.Reveal(), Again: cfg.Store.Again, MaxConns: cfg.PoolMaxConns,
		Timeout: cfg.StoreTimeout, AutoMigrate: cfg.AutoMigrate, TooOld: o.TooOld, Logger: o.Log,
		Listen: cfg.Listen, ListenURL: cfg.ListenURL.Reveal(), ListenAgain: cfg.ListenURL.Again,
		Failover: cfg.Failover, Tracers: o.Telemetry.Tracers, Metrics: o.Telemetry.Metrics.Store,
	})
}

// serverConfig is what the stores on etcd, Redis and MySQL have in common.
func serverConfig(cfg config.Config, o SpaceOptions) cas.ServerConfig {
	return cas.ServerConfig{
		URL: cfg.Store.Reveal(), Again: cfg.Store.Again, Timeout: cfg.StoreTimeout,
		Logger: o.Log, Tracers: o.Telemetry.Tracers, Metrics: o.Telemetry.Metrics.Store,
	}
}

func onEtcd(cfg config.Config, o SpaceOptions) (store.Space, error) {
	server, err := etcd.NewServer(serverConfig(cfg, o))
	if err != nil {
		return nil, err
	}
	return cas.NewSpace(server, cas.Config{Logger: o.Log}), nil
}

func onRedis(cfg config.Config, o SpaceOptions) (store.Space, error) {
	server, err := redis.NewServer(redis.Config{
		ServerConfig: serverConfig(cfg, o), MaxConns: cfg.PoolMaxConns - 1, TTL: cfg.TTL, Quick: cfg.Failover == store.FailoverQuick,
	})
	if err != nil {
		return nil, err
	}
	space := cas.NewSpace(server, cas.Config{Logger: o.Log})
	o.Telemetry.Metrics.Store.Observe(func() metrics.StoreState { return metrics.StoreState{Quiet: space.Quiet()} })
	return space, nil
}

func onMySQL(cfg config.Config, o SpaceOptions) (store.Space, error) {
	server, err := mysql.NewServer(mysql.Config{
		ServerConfig: serverConfig(cfg, o), MaxConns: cfg.PoolMaxConns,
		AutoMigrate: cfg.AutoMigrate, TooOld: o.TooOld, Quick: cfg.Failover == store.FailoverQuick,
	})
	if err != nil {
		return nil, err
	}
	space := cas.NewSpace(server, cas.Config{Logger: o.Log})
	o.Telemetry.Metrics.Store.Observe(func() metrics.StoreState {
		state := server.State()
		state.Quiet = space.Quiet()
		return state
	})
	return space, nil
}

func (s *sidecar) leaseConfig() lease.Config {
	cfg := s.Config
	return lease.Config{
		Instance: s.instance, Pod: cfg.Pod,
		TTL: cfg.TTL, RenewInterval: cfg.RenewInterval,
		StoreTimeout: cfg.StoreTimeout, PollInterval: cfg.PollInterval,
		CacheSize: cfg.CacheSize, CacheTTL: cfg.CacheTTL, Keep: cfg.Keep, BatchMax: cfg.BatchMax,
		MaxSessions: cfg.MaxSessions, MaxLocksPerSession: cfg.MaxLocksPerSession, MaxWaiters: cfg.MaxWaiters,
		Probes: true, Logger: s.log, Tracer: s.tel.Tracer, Metrics: s.tel.Metrics.Locks,
	}
}

// overTCP is what protects the TCP listener: a certificate, and tokens. Both are nil without a file.
func (s *sidecar) overTCP() (encrypted *tls.Config, authorized func([]byte) bool, err error) {
	cfg := s.Config
	if cfg.TCPCertFile != "" {
		pair, err := certificate.Load(certificate.Files{Cert: cfg.TCPCertFile, Key: cfg.TCPKeyFile, Private: true}, s.log)
		if err != nil {
			return nil, nil, fmt.Errorf("%[1]sTCP_TLS_CERT_FILE, %[1]sTCP_TLS_KEY_FILE: %[2]w", config.Prefix, err)
		}
		encrypted = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: pair.ForClient}
	}
	if cfg.TCPTokenFile != "" {
		tokens, err := bearer.Load(cfg.TCPTokenFile, s.log)
		if err != nil {
			return nil, nil, fmt.Errorf("%sTCP_TOKEN_FILE: %w", config.Prefix, err)
		}
		authorized = tokens.Match
	}
	return encrypted, authorized, nil
}

func (s *sidecar) proxyConfig(encrypted *tls.Config, authorized func([]byte) bool) proxy.Config {
	cfg := s.Config
	return proxy.Config{
		Locks: s.locks, Logger: s.log, Version: s.Version,
		Claimed: s.record.begin, Namespace: cfg.Namespace,
		TTL: cfg.TTL, AllowForce: cfg.AllowForce,
		Namespaces: func() bool {
			e, err := store.As[store.Elsewhere](s.store, "")
			return err == nil && e.MayShowNamespaces() == nil
		},
		Details: func() map[string]string { return store.Details(s.store) },
		Tracer:  s.tel.Tracer, Metrics: s.tel.Metrics.Calls, MetricsHandler: s.tel.Scrape,
		Socket: cfg.Socket, SocketMode: cfg.SocketMode, AllowedUIDs: cfg.AllowedUIDs,
		TCPAddr: cfg.TCPAddr, TLS: encrypted, Authorized: authorized, AdminAddr: cfg.AdminAddr,
		MaxConns: maxConns(cfg, memoryLimit(), fileLimit(), 1, s.log), MaxBody: cfg.MaxBody, MaxBodies: int(min(memoryLimit()/bodyShare, maxBodies)),
		MemoryLow: memoryLow(min(memoryLimit(), memoryWithout), s.log),
	}
}

// OpenStore makes the space of a configuration, without a sidecar, with one view. The caller starts the space, and then the view, and stops them
// in the other order.
func OpenStore(cfg config.Config, log *slog.Logger) (store.Space, store.Store, error) {
	id, err := instance.New(cfg.Pod, "")
	if err != nil {
		return nil, nil, err
	}
	space, err := NewSpace(cfg, SpaceOptions{Log: log})
	if err != nil {
		return nil, nil, err
	}
	return space, space.View(store.Identity{Namespace: cfg.Namespace, Instance: id, Pod: cfg.Pod}), nil
}
