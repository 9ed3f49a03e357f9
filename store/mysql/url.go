package mysql

import (
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/internal/endpoints"
)

const defaultPort = "3306"

// target is what a store's URL says.
type target struct {
	hosts              []string // host:port
	user, password, db string
	tls                *tls.Config // nil: none
}

// Check returns an error if a URL can never work. The error contains no password.
func Check(raw string) error {
	_, err := parseURL(raw)
	return err
}

// Place is where a valid URL's locks are: its database, and its hosts.
func Place(raw string) (database string, hosts []string) {
	t, err := parseURL(raw)
	if err != nil {
		return "", nil
	}
	return t.db, t.hosts
}

// parseURL reads mysql://user:password@host:port,host:port/database?tls=true&cacert=FILE&cert=FILE&key=FILE.
func parseURL(raw string) (target, error) {
	u, hosts, err := endpoints.Parse(raw, "mysql")
	if err != nil {
		return target{}, err
	}
	t := target{user: u.User.Username(), db: strings.TrimPrefix(u.Path, "/")}
	t.password, _ = u.User.Password()
	if t.user == "" {
		return target{}, errors.New("a user is missing")
	}
	if t.db == "" || strings.Contains(t.db, "/") {
		return target{}, errors.New("the name of a database must follow the host")
	}
	if t.hosts, err = endpoints.List(hosts, defaultPort); err != nil {
		return target{}, err
	}
	t.tls, err = secure(u.Query())
	return t, err
}

// secure returns the configuration of TLS, or nil.
func secure(query url.Values) (*tls.Config, error) {
	mode, files := query["tls"], len(query)
	if query.Del("tls"); mode != nil {
		files--
	}
	if len(mode) > 1 || len(mode) == 1 && !slices.Contains([]string{"true", "false", "skip-verify"}, mode[0]) {
		return nil, errors.New("tls: allowed are true, false and skip-verify")
	}
	is := func(what string) bool { return len(mode) == 1 && mode[0] == what }
	config, err := endpoints.TLS(is("true") || is("skip-verify"), query)
	switch {
	case err != nil:
		return nil, err
	case is("false") && files > 0:
		return nil, errors.New("tls=false, and a file for TLS")
	case is("skip-verify") && config.RootCAs != nil:
		return nil, errors.New("tls=skip-verify, and a cacert that nothing is verified with")
	case is("skip-verify"):
		config.InsecureSkipVerify = true
	}
	return config, nil
}

// driverConfig is the driver's configuration for one of the hosts.
func (t *target) driverConfig(host string) *mysql.Config {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName, c.Net, c.Addr = t.user, t.password, t.db, "tcp", host
	c.MultiStatements = true
	c.Logger = &mysql.NopLogger{}
	c.ConnectionAttributes = "program_name:locksidecar"
	if t.tls != nil {
		c.TLS = t.tls.Clone()
		c.TLS.ServerName, _, _ = net.SplitHostPort(host)
	}
	return c
}
