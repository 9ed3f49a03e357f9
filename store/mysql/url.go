package mysql

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"
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

// parseURL reads mysql://user:password@host:port,host:port/database?tls=true&cacert=FILE&cert=FILE&key=FILE.
func parseURL(raw string) (target, error) {
	hosts, one := split(raw)
	u, err := url.Parse(one)
	if err != nil {
		return target{}, errors.New("not a URL") // its text may contain a password
	}
	if u.Scheme != "mysql" || u.Fragment != "" || u.Opaque != "" {
		return target{}, errors.New("not a URL of mysql://")
	}
	t := target{user: u.User.Username(), db: strings.TrimPrefix(u.Path, "/")}
	t.password, _ = u.User.Password()
	if t.user == "" {
		return target{}, errors.New("a user is missing")
	}
	if t.db == "" || strings.Contains(t.db, "/") {
		return target{}, errors.New("the name of a database must follow the host")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		u, err := url.Parse("mysql://" + host)
		if err != nil || u.Hostname() == "" || u.Host != host {
			return target{}, errors.New("a host is missing or malformed")
		}
		port := u.Port()
		if port == "" {
			port = defaultPort
		}
		t.hosts = append(t.hosts, net.JoinHostPort(u.Hostname(), port))
	}
	t.tls, err = secure(u.Query())
	return t, err
}

// split returns the hosts of a URL, and the URL with one host, because net/url does not read lists with ports.
func split(raw string) (hosts, one string) {
	scheme, rest, _ := strings.Cut(raw, "://")
	authority, path := rest, ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority, path = rest[:end], rest[end:]
	}
	at := strings.LastIndex(authority, "@") + 1
	return authority[at:], scheme + "://" + authority[:at] + "host" + path
}

// secure returns the configuration of TLS, or nil.
func secure(query url.Values) (*tls.Config, error) {
	for name, values := range query {
		if !slices.Contains([]string{"tls", "cacert", "cert", "key"}, name) || len(values) != 1 || values[0] == "" {
			return nil, fmt.Errorf("parameter %q: allowed are tls (true, false or skip-verify), and the files cacert, cert and key", name)
		}
	}
	cacert, cert, key := query.Get("cacert"), query.Get("cert"), query.Get("key")
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch mode := query.Get("tls"); {
	case mode == "false" && cacert+cert+key != "":
		return nil, errors.New("tls=false, and a file for TLS")
	case mode == "false", mode == "" && cacert+cert+key == "":
		return nil, nil //nolint:nilnil // nil means no TLS
	case mode == "skip-verify" && cacert == "":
		config.InsecureSkipVerify = true //nolint:gosec // the operator says so
	case mode != "true" && mode != "":
		return nil, errors.New("tls: allowed are true, false and skip-verify (not together with cacert)")
	}
	if cacert != "" {
		pem, err := os.ReadFile(cacert) //nolint:gosec // the operator names the file
		if err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cacert: %s contains no certificate", cacert)
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("cert and key are needed together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key) // each connection parses the URL, so a new certificate is found
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
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
