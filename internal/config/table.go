package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/hostfolder"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// variable is a row of the table, for the loader, docs/configuration.md and `serve --help`.
type variable struct {
	name     string // without Prefix
	standard string // the value if unset; text in parentheses describes it
	setting

	help string
}

// Limits on lengths from other systems.
const (
	maxNamespaceBytes = 255
	// A pod's name is a DNS name; host names are shorter.
	maxPodBytes = 253
	// MaxSocketBytes: sun_path has room for 108 bytes with its closing zero.
	MaxSocketBytes = 107
	// A sidecar gives a key up two seconds after the store granted it, whatever KEEP is.
	longestKeep = 2 * time.Second
)

// table lists the variables of docs/configuration.md. Values outside the ranges are certainly mistakes.
func (l *loader) table() []variable {
	c := &l.cfg
	const most = 10_000_000
	return []variable{
		{"SOCKET", "(in `/run/locksidecar` if it is there, else `~/.locksidecar`)", into(&c.Socket, path(MaxSocketBytes)), "where the sidecar listens, and where its commands and the clients look for it; by default a file `locksidecar.sock`"},
		{"SOCKET_MODE", "0660", into(&c.SocketMode, fileMode), "the socket's permissions"},
		{"ALLOWED_UIDS", "(any)", into(&c.AllowedUIDs, uids), "the users that may use the socket, checked against the peer's credentials (Linux)"},
		{"TCP_ADDR", "(off)", into(&c.TCPAddr, tcpAddr), "the same API over TCP. On a loopback address every process that can reach it may take any lock, unless `TCP_TOKEN_FILE` is set. Any other address needs `TCP_TOKEN_FILE`, and a certificate (docs/operate.md#over-tcp)"},
		{"TCP_TLS_CERT_FILE", "(no TLS)", into(&c.TCPCertFile, filePath), "the certificate of `TCP_ADDR` with its chain, in PEM; read again when it changes"},
		{"TCP_TLS_KEY_FILE", "(no TLS)", into(&c.TCPKeyFile, filePath), "its key, in PEM. A file that every user may read is refused"},
		{"TCP_TOKEN_FILE", "(no token)", into(&c.TCPTokenFile, filePath), "what calls to `TCP_ADDR` must bring: a token of at least 32 characters, and while it is replaced a second one in the next line; read again when it changes. A file that every user may read is refused"},
		{"TCP_INSECURE", "false", into(&c.TCPInsecure, boolean), "serve other addresses than loopback without TLS. Everybody on the way can then read the token"},
		{"ADMIN_ADDR", "(off)", into(&c.AdminAddr, addr), "`/healthz`, `/readyz` and `/metrics`, for the kubelet and Prometheus"},
		{"STORE_URL", "(`memory://`)", into(&l.urls.store, anything(allowedStores)), "the store; several hosts are allowed. On `memory://` only the apps of this sidecar exclude each other: if it is not set, the log has a warning, and under Kubernetes it must be set"},
		{"STORE_URL_FILE", "", into(&l.urls.storeFile, anything("a file with a URL")), "a file that holds the URL, such as a mounted secret; instead of `STORE_URL`. It is read again before each new connection: a new password needs no restart"},
		{"NAMESPACE", "default", into(&c.Namespace, text(maxNamespaceBytes)), "keys of different namespaces never meet"},
		{"POD", "(`POD_NAME`, else the host name)", into(&c.Pod, text(maxPodBytes)), "the pod that others see as the holder"},
		{"TTL", "15s", into(&c.TTL, duration(500*time.Millisecond, 24*time.Hour)), "default time to live of a lock"},
		{"RENEW_INTERVAL", "(a third of the TTL)", into(&c.RenewInterval, duration(50*time.Millisecond, 12*time.Hour)), "longest time between two renewals; at most half of the TTL"},
		{"STORE_TIMEOUT", "5s", into(&c.StoreTimeout, duration(100*time.Millisecond, 5*time.Minute)), "limit of one operation of the store"},
		// one connection for renewals, one for the listener, one for the rest
		{"POOL_MAX_CONNS", "4", into(&c.PoolMaxConns, integer(3, 1000)), "connections to PostgreSQL or MySQL, those for renewals and LISTEN included; on MySQL one more waits for news (docs/stores.md#mysql-and-mariadb)"},
		{"POSTGRES_LISTEN", "auto", into(&c.Listen, oneOf(postgres.ListenAuto, postgres.ListenAlways, postgres.ListenNever)), "whether notifications of PostgreSQL are used: `auto` where they work, `never` if every connection goes through a pooler in transaction mode. Without notifications waits are checked every `POSTGRES_POLL_INTERVAL`"},
		{"POSTGRES_LISTEN_URL", "", into(&l.urls.listen, anything(allowedDatabases)), "if `STORE_URL` leads through a pooler in transaction mode: the same database directly, for the connection that listens, and for nothing else (docs/stores.md#poolers)"},
		{"POSTGRES_LISTEN_URL_FILE", "", into(&l.urls.listenFile, anything("a file with a URL")), "a file that holds that URL; instead of `POSTGRES_LISTEN_URL`"},
		{"POSTGRES_POLL_INTERVAL", "1s", into(&c.PollInterval, duration(50*time.Millisecond, time.Minute)), "how often waits are checked while notifications are off or may be missed"},
		{"FAILOVER", "(`quick` if PostgreSQL's standby is synchronous, else `quiet`)", into(&c.Failover, oneOf(store.FailoverQuiet, store.FailoverQuick)), "what follows a failover of PostgreSQL, MySQL or Redis that may have forgotten grants of this sidecar. `quiet` grants nothing to anybody for the longest TTL in use, so that no two sessions hold a lock. `quick` grants at once (docs/stores.md#quiet-time)"},
		{"CACHE_SIZE", "10000", into(&c.CacheSize, integer(1, most)), "keys in the held cache, which repeats the answer that a lock is held"},
		{"CACHE_TTL", "100ms", into(&c.CacheTTL, duration(0, time.Minute)), "how long the held cache keeps an answer; 0 turns it off"},
		{"KEEP", "0", into(&c.Keep, duration(0, longestKeep)), "how long a key that an app released stays with this sidecar, so that the next session here gets it without the store; another sidecar that wants it gets it sooner. 0 turns it off (docs/how-it-works.md#kept-keys)"},
		{"BATCH_MAX", "1000", into(&c.BatchMax, integer(1, 100_000)), "most rows in one statement"},
		{"MAX_SESSIONS", "1000", into(&c.MaxSessions, integer(1, most)), "most sessions at a time"},
		{"MAX_LOCKS_PER_SESSION", "100000", into(&c.MaxLocksPerSession, integer(1, most)), "most locks of one session"},
		{"MAX_WAITERS", "10000", into(&c.MaxWaiters, integer(1, most)), "most calls that wait for a lock"},
		{"MAX_BODY", "64KiB", into(&c.MaxBody, size(1<<10, 16<<20)), "largest body of a request"},
		{"DRAIN_TIMEOUT", "25s", into(&c.DrainTimeout, duration(0, 24*time.Hour)), "how long a stop waits for sessions that hold locks"},
		{"AUTO_MIGRATE", "true", into(&c.AutoMigrate, boolean), "bring the database's schema up to date at the start"},
		{"ALLOW_FORCE", "false", into(&c.AllowForce, boolean), "whether every user of the socket may break the locks of others (`DELETE …?force=true`, `release --force`)"},
		{"NODE_FOLDER", hostfolder.Default, into(&c.NodeFolder, folderPath), "for `locksidecar node`: the folder that it shares with `locksidecar csi` (docs/kubernetes.md#node-mode)"},
		{"NODE_POLICY_FILE", "", into(&c.NodePolicyFile, filePath), "for `locksidecar node`: the namespace of each Kubernetes namespace's locks, and what service accounts may do (docs/kubernetes.md#policy)"},
		{"LOG_LEVEL", "info", into(&c.LogLevel, level), "the lowest level that is logged"},
		{"LOG_FORMAT", "json", into(&c.LogFormat, oneOf(LogJSON, LogText)), "how log lines are written. On a terminal `serve` writes text unless this is set"},
	}
}

// Variables lists the full names of all variables that Load reads.
func Variables() []string {
	table := new(loader).table()
	names := make([]string, len(table))
	for i, v := range table {
		names[i] = Prefix + v.name
	}
	return names
}

// Help is the table of variables for --help.
func Help() string {
	var out strings.Builder
	plain := strings.NewReplacer("`", "")
	for _, v := range new(loader).table() {
		fmt.Fprintf(&out, "  %s\n%s%s",
			plain.Replace(strings.TrimRight(fmt.Sprintf("%s%-25s %s", Prefix, v.name, v.standard), " ")),
			wrap(plain.Replace(v.help)), wrap(plain.Replace("allowed: "+v.allowed)))
	}
	return strings.TrimRight(out.String(), "\n")
}

func wrap(text string) string {
	const indent, width = "     ", 88
	var out strings.Builder
	line := indent
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width {
			out.WriteString(line + "\n")
			line = indent
		}
		line += " " + word
	}
	return out.String() + line + "\n"
}
