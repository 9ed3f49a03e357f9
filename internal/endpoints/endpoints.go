// Package endpoints reads what the URLs of stores have in common: lists of hosts, and the files of TLS.
package endpoints

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
)

// Parse reads a URL of one of these schemes, and its list of hosts. The error does not contain the URL, which may have a
// password.
func Parse(raw string, schemes ...string) (u *url.URL, hosts string, err error) {
	hosts, one := split(raw)
	if u, err = url.Parse(one); err != nil {
		return nil, "", errors.New("not a URL")
	}
	if !slices.Contains(schemes, u.Scheme) || u.Fragment != "" || u.Opaque != "" {
		return nil, "", fmt.Errorf("not a URL of %s://", strings.Join(schemes, ":// or "))
	}
	return u, hosts, nil
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

// List reads host:port,host:port, with a default port.
func List(hosts, port string) (list []string, err error) {
	for host := range strings.SplitSeq(hosts, ",") {
		endpoint, err := withPort(host, port)
		if err != nil {
			return nil, err
		}
		list = append(list, endpoint)
	}
	return list, nil
}

func withPort(host, port string) (string, error) {
	u, err := url.Parse("any://" + host)
	if err != nil || u.Hostname() == "" || u.Host != host {
		return "", errors.New("a host is missing or malformed")
	}
	if u.Port() != "" {
		port = u.Port()
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}

// TLS returns the configuration of TLS from the parameters cacert, cert and key, or nil if there is none and it is not
// wanted. The client's certificate is read again for each connection, because it may be replaced.
func TLS(wanted bool, parameters url.Values) (*tls.Config, error) {
	files := map[string]string{}
	for name, values := range parameters {
		if name != "cacert" && name != "cert" && name != "key" || len(values) != 1 || values[0] == "" {
			return nil, fmt.Errorf("parameter %q: allowed are cacert, cert and key, each a file", name)
		}
		files[name] = values[0]
	}
	if !wanted && len(files) == 0 {
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
