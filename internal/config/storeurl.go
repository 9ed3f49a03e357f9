package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/store/etcd"
	"github.com/locksidecar/locksidecar/store/mysql"
	"github.com/locksidecar/locksidecar/store/postgres"
	"github.com/locksidecar/locksidecar/store/redis"
)

// StoreKind is the kind of the sidecar's store.
type StoreKind string

// The stores.
const (
	Memory   StoreKind = "memory"
	Postgres StoreKind = "postgres"
	Etcd     StoreKind = "etcd"
	Redis    StoreKind = "redis"
	MySQL    StoreKind = "mysql"
)

// StoreURL names a store. It may contain a password: String redacts it, Reveal does not.
type StoreURL struct {
	Kind StoreKind
	url  string
	// The variable that names a file with the URL, and this file, whose contents may change. Both are empty
	// without a file.
	variable, file string
}

// String is the URL without password and query.
func (u StoreURL) String() string { return redact(u.url) }

// LogValue makes a logger use String.
func (u StoreURL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// Reveal is the whole URL with its password, as read at the start. Only the store may use it.
func (u StoreURL) Reveal() string { return u.url }

// Place is where the store's locks are, without secrets: the kind of the store with its database or prefix, and its hosts. Two stores with the same one, and
// a host in common, have the same locks.
func (u StoreURL) Place() (store string, hosts []string) {
	within := ""
	switch u.Kind {
	case Postgres:
		within, hosts = postgres.Place(u.url)
	case Etcd:
		within, hosts = etcd.Place(u.url)
	case MySQL:
		within, hosts = mysql.Place(u.url)
	case Redis:
		within, hosts = redis.Place(u.url)
	case Memory:
	}
	return strings.TrimSpace(string(u.Kind) + " " + within), hosts
}

// maxURLFile limits the size of a file with a URL.
const maxURLFile = 64 << 10

// Again is the whole URL as its file contains it now, because a secret may be replaced while the sidecar runs.
// A URL from the environment does not change. The error contains no secret.
func (u StoreURL) Again() (string, error) {
	if u.file == "" {
		return u.url, nil
	}
	if info, err := os.Stat(u.file); err == nil && (!info.Mode().IsRegular() || info.Size() > maxURLFile) {
		return "", refused(Prefix+u.variable, u.file, "a regular file of one URL") // reading a pipe could block
	}
	now, err := urlFile(u.variable, u.file)
	return now.url, err
}

// The rules shown in messages.
const (
	allowedDatabases = "postgres://user:password@host:5432/database" //nolint:gosec // no credentials: an example
	allowedStores    = "memory://, " + allowedDatabases + ", mysql://user:password@host:3306/database, etcd://host:2379,host:2379/prefix or redis://host:6379"
)

func allowedIn(variable string) string {
	if strings.HasPrefix(variable, "POSTGRES_LISTEN") {
		return allowedDatabases
	}
	return allowedStores
}

func (l *loader) store() {
	// In a cluster, a missing URL must not lead to locks that only this pod knows.
	_, kubernetes := l.lookup("KUBERNETES_SERVICE_HOST")
	switch set := l.urls.store != "" || l.urls.storeFile != ""; {
	case set:
		l.cfg.Store = l.eitherURL("STORE_URL", l.urls.store, l.urls.storeFile)
	case kubernetes:
		l.errs = append(l.errs, fmt.Errorf(
			"%[1]sSTORE_URL is not set; under Kubernetes it must be (or %[1]sSTORE_URL_FILE), even to %[2]s",
			Prefix, allowedStores))
	default:
		l.cfg.Store = StoreURL{Kind: Memory, url: "memory://"}
	}
}

func (l *loader) listenURL() {
	variable, value := "POSTGRES_LISTEN_URL", redact(l.urls.listen)
	switch {
	case l.urls.listenFile != "":
		variable, value = "POSTGRES_LISTEN_URL_FILE", l.urls.listenFile
	case l.urls.listen == "":
		return
	}
	u := l.eitherURL("POSTGRES_LISTEN_URL", l.urls.listen, l.urls.listenFile)
	switch {
	case u.Kind != Postgres && u.Kind != "":
		l.bad(variable, u.String(), allowedIn(variable))
	case l.cfg.Store.Kind != Postgres && l.cfg.Store.Kind != "":
		l.bad(variable, value, "only with a store of PostgreSQL: the one in "+l.cfg.Store.String()+" needs no connection to listen")
	case l.cfg.Listen == postgres.ListenNever:
		l.bad(variable, value, fmt.Sprintf(
			"not together with %[1]sPOSTGRES_LISTEN=never: its only use is to listen; leave %[1]sPOSTGRES_LISTEN unset: all other statements still go through the pooler", Prefix))
	}
	l.cfg.ListenURL = u
}

func (l *loader) eitherURL(variable, value, file string) (u StoreURL) {
	var err error
	switch {
	case value != "" && file != "":
		err = refused(Prefix+variable+"_FILE", file, fmt.Sprintf("not together with %s%s", Prefix, variable))
	case file != "":
		u, err = urlFile(variable+"_FILE", file)
	default:
		u, err = storeURL(variable, value)
	}
	if err != nil {
		l.errs = append(l.errs, err)
	}
	return u
}

func urlFile(variable, path string) (StoreURL, error) {
	info, err := os.Stat(path)
	var content []byte
	if err == nil {
		content, err = os.ReadFile(path) //nolint:gosec // the operator names the file
	}
	if err != nil {
		return StoreURL{}, refused(Prefix+variable, path, "a file that can be read: "+err.Error())
	}
	raw := strings.TrimSpace(string(content))
	if raw == "" {
		return StoreURL{}, refused(Prefix+variable, path, "a file that holds a URL; this one is empty")
	}
	u, err := parseURL(variable, fmt.Sprintf("%s%s names %q, whose URL", Prefix, variable, path), raw)
	if err == nil && info.Mode().IsRegular() { // a pipe can be read only once
		u.variable, u.file = variable, path
	}
	return u, err
}

func storeURL(variable, raw string) (StoreURL, error) {
	return parseURL(variable, Prefix+variable, raw)
}

// parseURL parses the value of a variable, or the contents of its file. An error begins with the subject.
func parseURL(variable, subject, raw string) (StoreURL, error) {
	why := ""
	switch scheme, rest, _ := strings.Cut(raw, "://"); scheme {
	case "memory":
		if rest == "" && strings.HasSuffix(raw, "://") {
			return StoreURL{Kind: Memory, url: raw}, nil
		}
	case "postgres", "postgresql":
		_, err := pgconn.ParseConfig(raw)
		if err == nil {
			return StoreURL{Kind: Postgres, url: raw}, nil
		}
		why = explain(err, raw)
	case "etcd", "etcds":
		err := etcd.Check(raw)
		if err == nil {
			return StoreURL{Kind: Etcd, url: raw}, nil
		}
		why = " (" + err.Error() + ")"
	case "mysql":
		err := mysql.Check(raw)
		if err == nil {
			return StoreURL{Kind: MySQL, url: raw}, nil
		}
		why = " (" + err.Error() + ")"
	default:
		if !slices.Contains(redis.Schemes, scheme) {
			break
		}
		err := redis.Check(raw)
		if err == nil {
			return StoreURL{Kind: Redis, url: raw}, nil
		}
		why = " (" + err.Error() + ")"
	}
	return StoreURL{}, refused(subject, redact(raw), allowedIn(variable)+why)
}

// explain says why pgx refuses a URL, in words that certainly contain no secret.
func explain(err error, raw string) string {
	if file := unreadable(err, raw); file != "" {
		return " (" + file + ")"
	}
	shown := redact(raw)
	u, parseErr := url.Parse(raw)
	if parseErr != nil || strings.HasSuffix(shown, "://"+hidden) {
		return ""
	}
	if name, allowed := refusedParameter(*u); name != "" {
		return fmt.Sprintf(" (parameter %q: allowed is %s)", name, allowed)
	}
	// Without password and parameters, the parser's error has nothing to hide.
	bare := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if u.User != nil {
		bare.User = url.User(u.User.Username())
	}
	if _, err := pgconn.ParseConfig(bare.String()); err != nil {
		return " (" + err.Error() + ")"
	}
	return ""
}

// checkedParameters are those parameters of a URL whose values pgx checks, and what it allows.
var checkedParameters = []struct{ name, allowed string }{
	{"sslmode", "disable, allow, prefer, require, verify-ca or verify-full"},
	{"sslcert", "a file, together with sslkey"},
	{"sslkey", "a file, together with sslcert"},
	{"sslrootcert", "a file"},
	{"connect_timeout", "a whole number of seconds"},
	{"target_session_attrs", "any, read-write, read-only, primary, standby or prefer-standby"},
	{"channel_binding", "disable, prefer or require"},
}

// refusedParameter finds the parameter without which the URL would be accepted.
func refusedParameter(u url.URL) (name, allowed string) {
	all := u.RawQuery
	for _, p := range checkedParameters {
		u.RawQuery = all
		others := u.Query()
		if !others.Has(p.name) {
			continue
		}
		others.Del(p.name)
		u.RawQuery = others.Encode()
		if _, err := pgconn.ParseConfig(u.String()); err == nil {
			return p.name, p.allowed
		}
	}
	return "", ""
}

// unreadable names the URL's file that cannot be read, such as the database's CA.
func unreadable(err error, raw string) string {
	failed, ok := errors.AsType[*fs.PathError](err)
	u, parseErr := url.Parse(raw)
	if !ok || parseErr != nil {
		return ""
	}
	for _, name := range []string{"sslrootcert", "sslcert", "sslkey"} {
		if u.Query().Get(name) == failed.Path {
			return name + ": " + failed.Error()
		}
	}
	return ""
}

const hidden = "***"

var (
	safeUser = regexp.MustCompile(`^[\w.%-]*$`)
	safeHost = regexp.MustCompile(`^(?:[\w.-]*|\[[0-9a-fA-F:.]+\])(?::\d+)?(?:,(?:[\w.-]*|\[[0-9a-fA-F:.]+\])(?::\d+)?)*$`)
	safePath = regexp.MustCompile(`^(?:/[\w.%-]*)?$`)
)

// redact shows scheme, user, hosts and database of a URL. It hides a malformed URL completely, because its
// password may be anywhere.
func redact(raw string) string {
	scheme, _, ok := strings.Cut(raw, "://")
	if !ok || !safeUser.MatchString(scheme) {
		return hidden
	}
	u, err := url.Parse(raw)
	if err != nil || strings.Contains(u.RawQuery+u.Fragment, "@") ||
		!safeUser.MatchString(u.User.Username()) || !safeHost.MatchString(u.Host) || !safePath.MatchString(u.Path) {
		return scheme + "://" + hidden
	}
	user, query := u.User.Username(), ""
	if _, hasPassword := u.User.Password(); hasPassword {
		user += ":" + hidden
	}
	if u.User != nil {
		user += "@"
	}
	if u.RawQuery+u.Fragment != "" {
		query = "?" + hidden
	}
	return scheme + "://" + user + u.Host + u.Path + query
}
