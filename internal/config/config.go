// Package config reads the sidecar's configuration from the environment.
//
// Every variable begins with LOCKSIDECAR_. A variable that is set but empty
// counts as unset, because manifests write `value: ""` for "nothing". All
// mistakes are reported at once, each with the variable, its value and what is
// allowed, so that nobody has to fix them one restart at a time. A store URL may
// hold a password and is only ever shown redacted.
package config

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/sethvargo/go-envconfig"
)

// Prefix begins the name of every variable of the sidecar.
const Prefix = "LOCKSIDECAR_"

// DefaultSocket is where the sidecar listens, and where clients look for it.
const DefaultSocket = "/run/locksidecar/locksidecar.sock"

// Config is the whole configuration, checked: every value is in its range and
// all relations hold.
type Config struct {
	// Socket is the path of the Unix socket, SocketMode its permissions.
	Socket     string
	SocketMode fs.FileMode
	// AllowedUIDs are the users who may connect; empty: whoever can open the
	// socket.
	AllowedUIDs []uint32
	// TCPAddr is a loopback host:port for the same API; empty: off.
	TCPAddr string
	// AdminAddr is the host:port of health and metrics; empty: off.
	AdminAddr string

	// Store is what grants the locks.
	Store StoreURL
	// Namespace separates keys; Pod is this pod or host, as others see it.
	Namespace, Pod string

	// TTL is a lock's default time to live, RenewInterval the longest time
	// between two renewals of a lease.
	TTL, RenewInterval time.Duration
	// StoreTimeout limits one operation of the store.
	StoreTimeout time.Duration
	PoolMaxConns int
	Listen       Listen
	// ListenURL is where the connection goes that listens, and nothing else: past a
	// pooler. Its Kind is empty when it goes to Store, as all do.
	ListenURL    StoreURL
	PollInterval time.Duration
	CacheSize    int
	// CacheTTL is how long a denial is remembered; 0: not at all.
	CacheTTL time.Duration
	BatchMax int

	MaxSessions, MaxLocksPerSession, MaxWaiters int
	// MaxBody is the most bytes of a request's body.
	MaxBody int

	DrainTimeout time.Duration
	AutoMigrate  bool
	AllowForce   bool

	LogLevel  slog.Level
	LogFormat LogFormat
}

// Listen says whether the PostgreSQL store may listen for notifications.
type Listen string

// The values of LOCKSIDECAR_POSTGRES_LISTEN.
const (
	ListenAuto   Listen = "auto"
	ListenAlways Listen = "always"
	// ListenNever is for connections through a transaction pooler.
	ListenNever Listen = "never"
)

// LogFormat is how log lines are written.
type LogFormat string

// The values of LOCKSIDECAR_LOG_FORMAT.
const (
	LogJSON LogFormat = "json"
	LogText LogFormat = "text"
)

// Source is where the configuration comes from. The zero value is the process's
// own environment.
type Source struct {
	// Lookuper finds a variable by its full name.
	Lookuper envconfig.Lookuper
	// Environ lists all variables as NAME=value, to find unknown ones.
	Environ []string
	// Hostname is the last resort for the pod's name.
	Hostname func() (string, error)
}

// FromMap is a Source made of a map of full names, for tests.
func FromMap(env map[string]string) Source {
	src := Source{
		Lookuper: envconfig.MapLookuper(env),
		Environ:  []string{},
		Hostname: func() (string, error) { return "test-host", nil },
	}
	for name, value := range env {
		src.Environ = append(src.Environ, name+"="+value)
	}
	slices.Sort(src.Environ)
	return src
}

// With returns the source with another value for a variable of the sidecar, such as SOCKET.
func (src Source) With(variable, value string) Source {
	if src.Lookuper == nil {
		src.Lookuper = envconfig.OsLookuper()
	}
	src.Lookuper = envconfig.MultiLookuper(envconfig.MapLookuper(map[string]string{Prefix + variable: value}), src.Lookuper)
	return src
}

// raw is the environment before it is judged. All fields are strings: envconfig
// stops at the first value that it cannot decode, and we want to report them all.
type raw struct {
	Socket             string `env:"SOCKET,default=/run/locksidecar/locksidecar.sock"`
	SocketMode         string `env:"SOCKET_MODE,default=0660"`
	AllowedUIDs        string `env:"ALLOWED_UIDS"`
	TCPAddr            string `env:"TCP_ADDR"`
	AdminAddr          string `env:"ADMIN_ADDR"`
	StoreURL           string `env:"STORE_URL"`
	StoreURLFile       string `env:"STORE_URL_FILE"`
	Namespace          string `env:"NAMESPACE,default=default"`
	Pod                string `env:"POD"`
	TTL                string `env:"TTL,default=15s"`
	RenewInterval      string `env:"RENEW_INTERVAL"`
	StoreTimeout       string `env:"STORE_TIMEOUT,default=5s"`
	PoolMaxConns       string `env:"POOL_MAX_CONNS,default=4"`
	Listen             string `env:"POSTGRES_LISTEN,default=auto"`
	ListenURL          string `env:"POSTGRES_LISTEN_URL"`
	ListenURLFile      string `env:"POSTGRES_LISTEN_URL_FILE"`
	PollInterval       string `env:"POSTGRES_POLL_INTERVAL,default=1s"`
	CacheSize          string `env:"CACHE_SIZE,default=10000"`
	CacheTTL           string `env:"CACHE_TTL,default=100ms"`
	BatchMax           string `env:"BATCH_MAX,default=1000"`
	MaxSessions        string `env:"MAX_SESSIONS,default=1000"`
	MaxLocksPerSession string `env:"MAX_LOCKS_PER_SESSION,default=100000"`
	MaxWaiters         string `env:"MAX_WAITERS,default=10000"`
	MaxBody            string `env:"MAX_BODY,default=64KiB"`
	DrainTimeout       string `env:"DRAIN_TIMEOUT,default=25s"`
	AutoMigrate        string `env:"AUTO_MIGRATE,default=true"`
	AllowForce         string `env:"ALLOW_FORCE,default=false"`
	LogLevel           string `env:"LOG_LEVEL,default=info"`
	LogFormat          string `env:"LOG_FORMAT,default=json"`
}

// Load reads and checks the configuration. The warnings are complete sentences about
// what may not be what was wanted; the error joins all that was wrong.
func Load(ctx context.Context, src Source) (Config, []string, error) {
	src = src.withDefaults()
	var in raw
	err := envconfig.ProcessWith(ctx, &envconfig.Config{
		Target:   &in,
		Lookuper: envconfig.PrefixLookuper(Prefix, src.Lookuper),
	})
	if err != nil {
		return Config{}, nil, fmt.Errorf("reading the environment: %w", err)
	}
	var c check
	cfg := judge(&c, in, src)
	return cfg, append(byDefault(in), unknown(src.Environ)...), errors.Join(c.errs...)
}

// byDefault warns of a store that nobody has chosen: whoever forgets the URL in one of two
// pods would believe that they exclude each other.
func byDefault(in raw) []string {
	if in.StoreURL != "" || in.StoreURLFile != "" {
		return nil
	}
	return []string{Prefix + "STORE_URL is not set, so the locks live in this process (memory://): " +
		"only the apps of this sidecar exclude each other"}
}

// Socket reads the one variable that client commands share with the sidecar.
func Socket(lookup func(string) (string, bool)) string {
	if path, ok := lookup(Prefix + "SOCKET"); ok && path != "" {
		return path
	}
	return DefaultSocket
}

func (src Source) withDefaults() Source {
	if src.Lookuper == nil {
		src.Lookuper = envconfig.OsLookuper()
	}
	if src.Environ == nil {
		src.Environ = os.Environ()
	}
	if src.Hostname == nil {
		src.Hostname = os.Hostname
	}
	src.Lookuper = nonEmpty{src.Lookuper}
	return src
}

// nonEmpty takes an empty variable for an unset one.
type nonEmpty struct{ envconfig.Lookuper }

func (l nonEmpty) Lookup(key string) (string, bool) {
	value, ok := l.Lookuper.Lookup(key)
	return value, ok && value != ""
}
