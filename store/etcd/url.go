package etcd

import (
	"crypto/tls"
	"errors"
	"strings"

	"github.com/locksidecar/locksidecar/internal/endpoints"
)

const (
	defaultPort   = "2379"
	defaultPrefix = "/locksidecar"
)

// target is what a store's URL says.
type target struct {
	endpoints          []string
	prefix             string // with a slash at both ends
	username, password string
	tls                *tls.Config // nil: none
}

// Check returns an error if a URL can never work. The error contains no password.
func Check(raw string) error {
	_, err := parse(raw)
	return err
}

// Place is where a valid URL's locks are: its prefix, and its hosts.
func Place(raw string) (prefix string, hosts []string) {
	t, err := parse(raw)
	if err != nil {
		return "", nil
	}
	return t.prefix, t.endpoints
}

// parse reads etcd://user:password@host:port,host:port/prefix?cacert=FILE&cert=FILE&key=FILE. With etcds://, or with one
// of the files, connections are made by TLS. The parameters are named as the flags of etcdctl.
func parse(raw string) (target, error) {
	u, hosts, err := endpoints.Parse(raw, "etcd", "etcds")
	if err != nil {
		return target{}, err
	}
	t := target{prefix: "/" + strings.Trim(u.Path, "/") + "/", username: u.User.Username()}
	if t.prefix == "//" {
		t.prefix = defaultPrefix + "/"
	}
	password, hasPassword := u.User.Password()
	if t.password = password; hasPassword != (t.username != "") || hasPassword && password == "" {
		return target{}, errors.New("a user needs a password, and a password a user")
	}
	if t.endpoints, err = endpoints.List(hosts, defaultPort); err != nil {
		return target{}, err
	}
	t.tls, err = endpoints.TLS(u.Scheme == "etcds", u.Query())
	return t, err
}
