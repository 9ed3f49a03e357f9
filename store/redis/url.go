package redis

import (
	"crypto/tls"
	"errors"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/internal/endpoints"
)

const (
	defaultPort         = "6379"
	defaultSentinelPort = "26379"
	maxDB               = 1 << 16
)

// kind is how the servers work together.
type kind int

const (
	single kind = iota
	sentinel
	cluster
)

// target is what a store's URL says.
type target struct {
	kind               kind
	hosts              []string
	username, password string
	master             string // the name that the sentinels know
	sentinelUsername   string
	sentinelPassword   string
	db                 int
	tls                *tls.Config // nil: none
}

// Schemes are those of this store's URLs.
var Schemes = []string{"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"}

// Check returns an error if a URL can never work. The error contains no password.
func Check(raw string) error {
	_, err := parse(raw)
	return err
}

// Place is where a valid URL's locks are: its database, with the name of the sentinels' master, and its hosts.
func Place(raw string) (database string, hosts []string) {
	t, err := parse(raw)
	if err != nil {
		return "", nil
	}
	return strings.TrimPrefix(t.master+"/"+strconv.Itoa(t.db), "/"), t.hosts
}

// parse reads
//
//	redis://user:password@host:port/db
//	redis+sentinel://user:password@sentinel:port,sentinel:port/master/db?sentinel_user=USER&sentinel_password=PASSWORD
//	redis+cluster://user:password@host:port,host:port
//
// and the same with rediss for TLS, with the parameters cacert, cert and key, each a file.
func parse(raw string) (t target, err error) {
	u, hosts, err := endpoints.Parse(raw, Schemes...)
	if err != nil {
		return t, err
	}
	base, mode, _ := strings.Cut(u.Scheme, "+")
	port := defaultPort
	switch mode {
	case "sentinel":
		t.kind, port = sentinel, defaultSentinelPort
	case "cluster":
		t.kind = cluster
	}
	t.username = u.User.Username()
	t.password, _ = u.User.Password()
	if t.username != "" && t.password == "" {
		return t, errors.New("a user needs a password; a password alone is written as :password@")
	}
	if t.hosts, err = endpoints.List(hosts, port); err != nil {
		return t, err
	}
	if t.kind == single && len(t.hosts) > 1 {
		return t, errors.New("several hosts need redis+sentinel:// or redis+cluster://")
	}
	query := u.Query()
	if t.kind == sentinel {
		t.sentinelUsername, t.sentinelPassword = query.Get("sentinel_user"), query.Get("sentinel_password")
		query.Del("sentinel_user")
		query.Del("sentinel_password")
	}
	if err := t.path(u.Path); err != nil {
		return t, err
	}
	t.tls, err = endpoints.TLS(base == "rediss", query)
	if err == nil && t.tls != nil && base == "redis" {
		err = errors.New("cacert, cert and key need rediss://")
	}
	return t, err
}

// path reads the name of the sentinels' master, and the number of the database.
func (t *target) path(path string) error {
	path = strings.Trim(path, "/")
	if t.kind == sentinel {
		if t.master, path, _ = strings.Cut(path, "/"); t.master == "" {
			return errors.New("with redis+sentinel:// the path is the name of the master, such as /mymaster")
		}
	}
	if path == "" {
		return nil
	}
	db, err := strconv.Atoi(path)
	if err != nil || db < 0 || db > maxDB {
		return errors.New("the path's last part must be the number of a database")
	}
	if t.kind == cluster && db != 0 {
		return errors.New("a cluster has only database 0")
	}
	t.db = db
	return nil
}
