// Package config reads the sidecar's configuration from the environment.
//
// Every variable begins with LOCKSIDECAR_. An empty variable counts as unset, because manifests write `value:
// ""` for "nothing". All mistakes are reported at once, each with the variable, its value and the rule. A store
// URL may contain a password and is only shown redacted.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sethvargo/go-envconfig"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// Prefix begins the name of every variable of the sidecar.
const Prefix = "LOCKSIDECAR_"

// DefaultSocket is the path of the socket where its folder is there, as in pods. Elsewhere it is HomeSocket in the user's home.
const (
	DefaultSocket = "/run/locksidecar/locksidecar.sock"
	HomeSocket    = ".locksidecar/locksidecar.sock"
)

// Config is the whole configuration, checked: values are in range and compatible.
type Config struct {
	// Socket is the path of the Unix socket, SocketMode its permissions.
	Socket     string
	SocketMode fs.FileMode
	// AllowedUIDs are the users who may connect; empty: every user who can open the socket.
	AllowedUIDs []uint32
	// TCPAddr is a host:port for the same API; empty: off. TCPCertFile and TCPKeyFile are the certificate of TLS there; empty: no TLS.
	TCPAddr, TCPCertFile, TCPKeyFile string
	// TCPTokenFile holds the tokens that calls over TCP need; empty: they need none, and TCPAddr is loopback.
	TCPTokenFile string
	// TCPInsecure: other addresses than loopback may be served without TLS.
	TCPInsecure bool
	// AdminAddr is the host:port of health and metrics; empty: off.
	AdminAddr string

	// Store is what grants the locks.
	Store StoreURL
	// Namespace separates keys. Pod is this pod or host, as others see it.
	Namespace, Pod string

	// TTL is a lock's default. RenewInterval is the longest time between two renewals of a lease.
	TTL, RenewInterval time.Duration
	// StoreTimeout limits one operation of the store.
	StoreTimeout time.Duration
	PoolMaxConns int
	Listen       postgres.Listen
	// ListenURL is for the connection that only listens, past a pooler. Without a Kind, Store is used.
	ListenURL    StoreURL
	PollInterval time.Duration
	Failover     store.Failover
	CacheSize    int
	// CacheTTL is how long the held cache keeps an answer; 0 turns it off.
	CacheTTL time.Duration
	// Keep is how long a released key stays with this sidecar; 0 turns it off.
	Keep     time.Duration
	BatchMax int

	MaxSessions, MaxLocksPerSession, MaxWaiters int
	// MaxBody limits the bytes of a request's body.
	MaxBody int

	DrainTimeout time.Duration
	AutoMigrate  bool
	AllowForce   bool

	// NodeFolder and NodePolicyFile are for `locksidecar node`.
	NodeFolder, NodePolicyFile string

	LogLevel  slog.Level
	LogFormat LogFormat
}

// LogFormat is how log lines are written.
type LogFormat string

// The values of LOCKSIDECAR_LOG_FORMAT.
const (
	LogJSON LogFormat = "json"
	LogText LogFormat = "text"
)

// Source provides the variables of the configuration.
type Source struct {
	// Lookuper finds a variable by its full name.
	envconfig.Lookuper
	// Environ lists all variables as NAME=value, to find unknown ones.
	Environ func() []string
	// Hostname is used if the pod's name is not set.
	Hostname func() (string, error)
	// Exists says whether there is a file or folder.
	Exists func(path string) bool
}

// Environment is the source of a process.
func Environment() Source {
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	return Source{envconfig.OsLookuper(), os.Environ, os.Hostname, exists}
}

// FromMap is a Source made of a map of full names, for tests. The folder of DefaultSocket is there.
func FromMap(env map[string]string) Source {
	environ := func() (all []string) {
		for name, value := range env {
			all = append(all, name+"="+value)
		}
		return all
	}
	return Source{envconfig.MapLookuper(env), environ, func() (string, error) { return "test-host", nil }, func(string) bool { return true }}
}

// With returns the source with another value for a sidecar's variable, such as SOCKET.
func (src Source) With(variable, value string) Source {
	src.Lookuper = envconfig.MultiLookuper(envconfig.MapLookuper(map[string]string{Prefix + variable: value}), src.Lookuper)
	return src
}

// Load reads and checks the configuration. The warnings are sentences about probable mistakes. The error joins
// all mistakes.
func Load(src Source) (Config, []string, error) {
	l := &loader{src: src}
	l.read(Variables()...)
	l.relate()
	return l.cfg, append(l.byDefault(), unknown(src.Environ())...), errors.Join(l.errs...)
}

// nodeDrain is the drain timeout of a server of a node. While it is updated, its successor serves, so it can wait for long.
const nodeDrain = "1h"

// LoadNode is Load for `locksidecar node`, which serves each pod on a socket of its own, in a namespace of its own.
func LoadNode(src Source) (Config, []string, error) {
	if value, _ := src.Lookup(Prefix + "DRAIN_TIMEOUT"); value == "" {
		src = src.With("DRAIN_TIMEOUT", nodeDrain)
	}
	var errs []error
	for _, name := range []string{"SOCKET_MODE", "ALLOWED_UIDS", "TCP_ADDR", "NAMESPACE", "ALLOW_FORCE"} {
		if value, _ := src.Lookup(Prefix + name); value != "" {
			errs = append(errs, refused(Prefix+name, value, "nothing, for `locksidecar node`: each pod has a socket and a namespace of its own, and "+Prefix+"NODE_POLICY_FILE says what it may do"))
		}
	}
	// Its sockets are in its folder.
	cfg, warnings, err := Load(src.With("SOCKET", DefaultSocket))
	if cfg.Store.Kind == Memory {
		warnings = append(warnings, Prefix+"STORE_URL is memory://: another lock server on this node has locks of its own, so while this one is updated, the next one serves nobody until this one has ended")
	}
	return cfg, warnings, errors.Join(append(errs, err)...)
}

// Logging reads the level and format of the log, for a process other than a sidecar.
func Logging(src Source) (slog.Level, LogFormat, error) {
	l := &loader{src: src}
	l.read(Prefix+"LOG_LEVEL", Prefix+"LOG_FORMAT")
	return l.cfg.LogLevel, l.cfg.LogFormat, errors.Join(l.errs...)
}

// loader reads one configuration and collects its mistakes.
type loader struct {
	src  Source
	cfg  Config
	urls urls
	errs []error
}

// urls are the values of the variables for a StoreURL.
type urls struct{ store, storeFile, listen, listenFile string }

// lookup treats an empty variable as unset.
func (l *loader) lookup(name string) (value string, set bool) {
	value, set = l.src.Lookup(name)
	return value, set && value != ""
}

func (l *loader) value(v *variable) string {
	if value, set := l.lookup(Prefix + v.name); set {
		return value
	}
	if strings.HasPrefix(v.standard, "(") {
		return ""
	}
	return v.standard
}

// read reads the variables with these full names, each on its own.
func (l *loader) read(names ...string) {
	for _, v := range l.table() {
		if value := l.value(&v); value != "" && slices.Contains(names, Prefix+v.name) && !v.set(value) {
			l.bad(v.name, value, v.allowed)
		}
	}
}

func (l *loader) bad(name, value, allowed string) {
	l.errs = append(l.errs, refused(Prefix+name, value, allowed))
}

func refused(variable, value, allowed string) error {
	if strings.HasPrefix(allowed, aDuration) {
		allowed += MissingUnit(value)
	}
	return fmt.Errorf("%s is %q; allowed: %s", variable, value, allowed)
}

// relate checks combinations of variables, and sets defaults that depend on others.
func (l *loader) relate() {
	l.socket()
	l.pod()
	l.renewInterval()
	l.listeners()
	l.store()
	l.listenURL()
}

func (l *loader) socket() {
	if _, ok := l.lookup(Prefix + "SOCKET"); ok {
		return
	}
	value := Socket(l.src)
	socket := into(&l.cfg.Socket, path(MaxSocketBytes))
	if !socket.set(value) {
		l.bad("SOCKET", value, socket.allowed+"; it is not set, and this is in your home")
	}
}

// pod sets the pod that others see with a holder.
func (l *loader) pod() {
	if _, ok := l.lookup(Prefix + "POD"); ok {
		return
	}
	variable := "POD_NAME"
	value, ok := l.lookup(variable)
	if !ok {
		variable = Prefix + "POD"
		var err error
		if value, err = l.src.Hostname(); err != nil {
			l.errs = append(l.errs, fmt.Errorf("%s is not set, and the host name cannot be read: %w", variable, err))
			return
		}
	}
	pod := into(&l.cfg.Pod, text(maxPodBytes))
	if !pod.set(value) {
		l.errs = append(l.errs, refused(variable, value, pod.allowed))
	}
}

// renewInterval leaves room for a second renewal in a lease, so that one failed renewal loses no lock.
func (l *loader) renewInterval() {
	set, ok := l.lookup(Prefix + "RENEW_INTERVAL")
	switch ttl := l.cfg.TTL; {
	case !ok:
		l.cfg.RenewInterval = ttl / 3
	case ttl > 0 && l.cfg.RenewInterval > ttl/2: // 0: the TTL was refused
		l.bad("RENEW_INTERVAL", set, fmt.Sprintf(
			"at most %s, half of %sTTL (%s): a renewal that fails must be able to come again before the lease ends",
			short(ttl/2), Prefix, short(ttl)))
	}
}

func (l *loader) listeners() {
	tcp, admin := l.cfg.TCPAddr, l.cfg.AdminAddr
	if tcp != "" && tcp == admin && !strings.HasSuffix(tcp, ":0") {
		l.bad("ADMIN_ADDR", admin, fmt.Sprintf("another address than %sTCP_ADDR", Prefix))
	}
	l.tcp()
}

// tcp refuses a TCP listener that others could use, or whose traffic others could read. The token is what names an app over TCP, as the user
// does on the socket.
func (l *loader) tcp() {
	c := &l.cfg
	if c.TCPAddr == "" {
		for _, v := range []struct{ name, value string }{
			{"TCP_TLS_CERT_FILE", c.TCPCertFile}, {"TCP_TLS_KEY_FILE", c.TCPKeyFile}, {"TCP_TOKEN_FILE", c.TCPTokenFile},
		} {
			if _, refused := l.lookup(Prefix + "TCP_ADDR"); v.value != "" && !refused {
				l.bad(v.name, v.value, fmt.Sprintf("only with %sTCP_ADDR, which is not set", Prefix))
			}
		}
		return
	}
	encrypted := c.TCPCertFile != ""
	if (c.TCPKeyFile != "") != encrypted {
		l.bad("TCP_TLS_KEY_FILE", c.TCPKeyFile, fmt.Sprintf("a file, together with %sTCP_TLS_CERT_FILE (%q)", Prefix, c.TCPCertFile))
	}
	if encrypted && c.TCPInsecure {
		l.bad("TCP_INSECURE", "true", fmt.Sprintf("not together with %sTCP_TLS_CERT_FILE (%q): with TLS the connection is secure", Prefix, c.TCPCertFile))
	}
	if uids, ok := l.lookup(Prefix + "ALLOWED_UIDS"); ok && c.TCPTokenFile == "" {
		l.bad("TCP_ADDR", c.TCPAddr, fmt.Sprintf(
			"together with %[1]sALLOWED_UIDS (%[2]q) only if %[1]sTCP_TOKEN_FILE is set, too: a TCP peer has no user id that could be checked", Prefix, uids))
	}
	if isLoopback(c.TCPAddr) {
		return
	}
	if !encrypted && !c.TCPInsecure {
		l.bad("TCP_ADDR", c.TCPAddr, fmt.Sprintf("a loopback address, such as 127.0.0.1:7624; for any other set %[1]sTCP_TLS_CERT_FILE and %[1]sTCP_TLS_KEY_FILE "+
			"(or %[1]sTCP_INSECURE=true, if nobody in the network can read or change its messages)", Prefix))
	}
	if c.TCPTokenFile == "" {
		l.bad("TCP_ADDR", c.TCPAddr, fmt.Sprintf("a loopback address, such as 127.0.0.1:7624; for any other set %sTCP_TOKEN_FILE, because everybody in the network could take locks", Prefix))
	}
}

// byDefault warns if the store was not chosen, because a pod without a URL does not exclude pods with one.
func (l *loader) byDefault() []string {
	if l.urls.store != "" || l.urls.storeFile != "" {
		return nil
	}
	return []string{Prefix + "STORE_URL is not set, so the locks live in this process (memory://): " +
		"only the apps of this sidecar exclude each other"}
}

// unknown lists unknown LOCKSIDECAR_ variables in one sentence, without values, which may be secret. They are
// not an error, because Kubernetes injects such variables for a service of that name.
func unknown(environ []string) []string {
	known := Variables()
	var names []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, Prefix) && !slices.Contains(known, name) {
			names = append(names, name)
		}
	}
	if names == nil {
		return nil
	}
	slices.Sort(names)
	return []string{fmt.Sprintf("these variables are not known and have no effect: %s", strings.Join(names, ", "))}
}

// Socket is the path of the socket, for the sidecar and for its commands. The clients have the same rule: a pod has the folder of DefaultSocket. On a
// machine where nobody made it, each user's sidecar listens in the home of the user, so that the two find each other without a variable. The
// rule looks at the folder, not at the socket: so a client that was started before its sidecar has the same path.
func Socket(src Source) string {
	if path, _ := src.Lookup(Prefix + "SOCKET"); path != "" {
		return path
	}
	home, _ := src.Lookup("HOME")
	if !filepath.IsAbs(home) || src.Exists(filepath.Dir(DefaultSocket)) {
		return DefaultSocket
	}
	return filepath.Join(home, HomeSocket)
}
