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

// newStore makes the store. It calls tooOld if the database needs a newer sidecar.
func (s *sidecar) newStore(tooOld func(error)) (store.Store, error) {
	cfg := s.Config
	id := store.Identity{Namespace: cfg.Namespace, Instance: s.instance, Pod: cfg.Pod}
	if cfg.Store.Kind == config.Memory {
		return memory.NewSpace().Open(id), nil
	}
	if cfg.Store.Kind == config.Etcd {
		return s.onEtcd(id)
	}
	if cfg.Store.Kind == config.Redis {
		return s.onRedis(id)
	}
	if cfg.Store.Kind == config.MySQL {
		return s.onMySQL(id, tooOld)
	}
	return postgres.New(postgres.Config{
		URL: cfg.Store.Reveal(), Again: cfg.Store.Again, Identity: id, MaxConns: cfg.PoolMaxConns,
		Timeout: cfg.StoreTimeout, AutoMigrate: cfg.AutoMigrate, TooOld: tooOld, Logger: s.log,
		Listen: cfg.Listen, ListenURL: cfg.ListenURL.Reveal(), ListenAgain: cfg.ListenURL.Again,
		Failover: cfg.Failover, Tracers: s.tel.Tracers, Metrics: s.tel.Metrics.Store,
	})
}

// serverConfig is what the stores on etcd, Redis and MySQL have in common.
func (s *sidecar) serverConfig() cas.ServerConfig {
	return cas.ServerConfig{
		URL: s.Config.Store.Reveal(), Again: s.Config.Store.Again, Instance: s.instance, Timeout: s.Config.StoreTimeout,
		Logger: s.log, Tracers: s.tel.Tracers, Metrics: s.tel.Metrics.Store,
	}
}

func (s *sidecar) onEtcd(id store.Identity) (store.Store, error) {
	backend, err := etcd.New(s.serverConfig())
	if err != nil {
		return nil, err
	}
	return cas.New(cas.Config{Backend: backend, Identity: id, Logger: s.log}), nil
}

func (s *sidecar) onRedis(id store.Identity) (store.Store, error) {
	cfg := s.Config
	backend, err := redis.New(redis.Config{
		ServerConfig: s.serverConfig(), MaxConns: cfg.PoolMaxConns - 1, TTL: cfg.TTL, Quick: cfg.Failover == store.FailoverQuick,
	})
	if err != nil {
		return nil, err
	}
	st := cas.New(cas.Config{Backend: backend, Identity: id, Logger: s.log})
	s.tel.Metrics.Store.Observe(func() metrics.StoreState { return metrics.StoreState{Quiet: st.Quiet()} })
	return st, nil
}

func (s *sidecar) onMySQL(id store.Identity, tooOld func(error)) (store.Store, error) {
	cfg := s.Config
	backend, err := mysql.New(mysql.Config{
		ServerConfig: s.serverConfig(), MaxConns: cfg.PoolMaxConns,
		AutoMigrate: cfg.AutoMigrate, TooOld: tooOld, Quick: cfg.Failover == store.FailoverQuick,
	})
	if err != nil {
		return nil, err
	}
	st := cas.New(cas.Config{Backend: backend, Identity: id, Logger: s.log})
	s.tel.Metrics.Store.Observe(func() metrics.StoreState {
		state := backend.State()
		state.Quiet = st.Quiet()
		return state
	})
	return st, nil
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
		MaxConns: maxConns(cfg, memoryLimit(), fileLimit(), s.log), MaxBody: cfg.MaxBody, MaxBodies: int(min(memoryLimit()/bodyShare, maxBodies)),
		MemoryLow: memoryLow(min(memoryLimit(), memoryWithout), s.log),
	}
}

// OpenStore makes the store of a configuration, without a sidecar, and without traces and metrics. The caller starts and
// stops it.
func OpenStore(cfg config.Config, log *slog.Logger) (store.Store, error) {
	id, err := instance.New(cfg.Pod, "")
	if err != nil {
		return nil, err
	}
	s := &sidecar{Options: Options{Config: cfg}, instance: id, log: log, tel: &telemetry.Telemetry{Metrics: &metrics.Set{}}}
	return s.newStore(func(error) {})
}
