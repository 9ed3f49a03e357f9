package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
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

// parse reads etcd://user:password@host:port,host:port/prefix?cacert=FILE&cert=FILE&key=FILE. With etcds://, or with one
// of the files, connections are made by TLS. The parameters are named as the flags of etcdctl.
func parse(raw string) (target, error) {
	hosts, one := split(raw)
	u, err := url.Parse(one)
	if err != nil {
		return target{}, errors.New("not a URL") // its text may contain a password
	}
	if u.Scheme != "etcd" && u.Scheme != "etcds" || u.Fragment != "" || u.Opaque != "" {
		return target{}, errors.New("not a URL of etcd:// or etcds://")
	}
	t := target{prefix: "/" + strings.Trim(u.Path, "/") + "/", username: u.User.Username()}
	if t.prefix == "//" {
		t.prefix = defaultPrefix + "/"
	}
	password, hasPassword := u.User.Password()
	if t.password = password; hasPassword != (t.username != "") || hasPassword && password == "" {
		return target{}, errors.New("a user needs a password, and a password a user")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		endpoint, err := withPort(host)
		if err != nil {
			return target{}, err
		}
		t.endpoints = append(t.endpoints, endpoint)
	}
	t.tls, err = secure(u)
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

func withPort(host string) (string, error) {
	u, err := url.Parse("etcd://" + host)
	if err != nil || u.Hostname() == "" || u.Host != host {
		return "", errors.New("a host is missing or malformed")
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// secure returns the configuration of TLS, or nil. The client's certificate is read again for each connection,
// because it may be replaced.
func secure(u *url.URL) (*tls.Config, error) {
	files := map[string]string{}
	for name, values := range u.Query() {
		if name != "cacert" && name != "cert" && name != "key" || len(values) != 1 || values[0] == "" {
			return nil, fmt.Errorf("parameter %q: allowed are cacert, cert and key, each a file", name)
		}
		files[name] = values[0]
	}
	if u.Scheme == "etcd" && len(files) == 0 {
		return nil, nil //nolint:nilnil // nil means no TLS
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := files["cacert"]; file != "" {
		pem, err := os.ReadFile(file) //nolint:gosec // the operator names the file
		if err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cacert: %s contains no certificate", file)
		}
	}
	cert, key := files["cert"], files["key"]
	if (cert == "") != (key == "") {
		return nil, errors.New("cert and key are needed together")
	}
	if cert != "" {
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return nil, fmt.Errorf("cert and key: %w", err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			return &pair, err
		}
	}
	return config, nil
}
