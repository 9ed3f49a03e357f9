package locksidecar

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A peer that vanishes closes nothing. So the system probes one that says nothing, and ends the connection when nothing has come for so long.
const (
	probe          = 3 * time.Second
	longestSilence = 15 * time.Second
)

// maxUnsent limits the connections over TCP that have sent no request yet. Above 64 that have shown no token, the sidecar ends the oldest.
const maxUnsent = 16

// endpoint is where the sidecar listens, and how it is called there.
type endpoint struct {
	// name is the path of a socket, or a URL.
	name string
	// socket is the path of a socket; empty: over TCP.
	socket string
	// address is a host:port, and host that of the certificate.
	address, host string
	encrypted     bool
	ca            setting    // a file; without a value: the system's
	token         *tokenFile // nil: none
	// unsent has an element for each connection of dialInTurn that has sent nothing.
	unsent chan struct{}
	// wrong is why no call can be made.
	wrong error
}

// setting is a value, and where it was set, for messages.
type setting struct{ name, value string }

// first is the first of the settings that is set, or one without a value.
func first(all ...setting) setting {
	for _, s := range all {
		if s.value != "" {
			return s
		}
	}
	return setting{}
}

// endpointOf reads the settings. What is set in code wins over the environment, and a URL over a socket.
func endpointOf(c *Config, env func(string) string, exists func(string) bool) *endpoint {
	where := first(setting{"Config.URL", c.URL}, setting{"Config.Socket", c.Socket}, setting{"LOCKSIDECAR_URL", env("LOCKSIDECAR_URL")})
	e := &endpoint{unsent: make(chan struct{}, maxUnsent)}
	switch {
	case c.URL != "" && c.Socket != "":
		e.name, e.wrong = c.URL, invalid("Config.URL and Config.Socket are both set; one names the sidecar")
		return e
	case where.name == "Config.Socket":
		e.socket = c.Socket
	case where.value == "":
		e.socket = usualSocket(env, exists)
	default:
		e.parse(where)
	}
	if e.socket != "" || e.wrong != nil {
		if e.name == "" {
			e.name = e.socket
		}
		return e
	}
	if token := first(setting{"Config.TokenFile", c.TokenFile}, setting{"LOCKSIDECAR_TOKEN_FILE", env("LOCKSIDECAR_TOKEN_FILE")}); token.value != "" {
		e.token = &tokenFile{setting: token}
	}
	e.ca = first(setting{"Config.CAFile", c.CAFile}, setting{"LOCKSIDECAR_CA_FILE", env("LOCKSIDECAR_CA_FILE")})
	return e
}

// parse reads a URL. A URL with a password, which has no use here, is not shown.
func (e *endpoint) parse(s setting) {
	u, err := url.Parse(s.value)
	shown := fmt.Sprintf("%q", s.value)
	if err != nil || u.User != nil || strings.Contains(s.value, "@") {
		shown = "not a URL of a sidecar"
	}
	e.name = "the URL in " + s.name
	e.wrong = invalid("%s is %s; allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT", s.name, shown)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" || strings.Contains(s.value, "@") {
		return
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		e.socket, e.name, e.wrong = u.Path, u.Path, nil
	case (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && u.Port() != "" && (u.Path == "" || u.Path == "/"):
		e.address, e.host, e.encrypted, e.wrong = u.Host, u.Hostname(), u.Scheme == "https", nil
		e.name = u.Scheme + "://" + u.Host
	}
}

// authority is the Host of the requests.
func (e *endpoint) authority() string {
	if e.socket != "" {
		return "localhost"
	}
	return e.address
}

// dial connects, with TLS if the URL says so.
func (e *endpoint) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: probe, Interval: probe, Count: int(longestSilence / probe)}}
	if e.socket != "" {
		return dialer.DialContext(ctx, "unix", e.socket)
	}
	dialer.Control = func(_, _ string, raw syscall.RawConn) error {
		limitUnanswered(raw, longestSilence)
		return nil
	}
	conn, err := dialer.DialContext(ctx, "tcp", e.address)
	if err != nil || !e.encrypted {
		return conn, err
	}
	encrypted, err := e.handshake(ctx, conn)
	if err != nil {
		_ = conn.Close()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: conn.RemoteAddr(), Err: err}
	}
	return encrypted, nil
}

// dialInTurn connects for a call that sends its request at once. Over TCP it may wait until others have sent theirs.
func (e *endpoint) dialInTurn(ctx context.Context) (net.Conn, error) {
	if e.socket != "" {
		return e.dial(ctx)
	}
	select {
	case e.unsent <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	sent := sync.OnceFunc(func() { <-e.unsent })
	conn, err := e.dial(ctx)
	if err != nil {
		sent()
		return nil, err
	}
	return &inTurn{Conn: conn, sent: sent}, nil
}

// inTurn is a connection of dialInTurn.
type inTurn struct {
	net.Conn
	sent func()
}

func (c *inTurn) Write(b []byte) (int, error) {
	defer c.sent()
	return c.Conn.Write(b)
}

func (c *inTurn) Close() error {
	defer c.sent()
	return c.Conn.Close()
}

func (e *endpoint) handshake(ctx context.Context, conn net.Conn) (net.Conn, error) {
	settings := &tls.Config{ServerName: e.host, MinVersion: tls.VersionTLS12}
	if e.ca.value != "" {
		text, err := os.ReadFile(e.ca.value)
		if err != nil {
			return nil, fmt.Errorf("%s cannot be read: %w", e.ca.name, err)
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s is %q, and this file has no certificate in PEM", e.ca.name, e.ca.value)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	encrypted := tls.Client(conn, settings)
	err := encrypted.HandshakeContext(ctx)
	return encrypted, err
}

// whatToCheck says why there is no connection over TCP, and what to look at.
func (e *endpoint) whatToCheck(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	var noName *net.DNSError
	switch {
	case errors.As(err, &unknown):
		return fmt.Sprintf("the certificate of the sidecar at %s is of a CA that this process does not trust (%v); LOCKSIDECAR_CA_FILE names the file of the CA", e.name, unknown)
	case errors.As(err, &name):
		return fmt.Sprintf("the certificate of the sidecar at %s is for another name (%v); LOCKSIDECAR_URL has to use a name of the certificate", e.name, name)
	case errors.As(err, &invalid):
		return fmt.Sprintf("the certificate of the sidecar at %s is not valid now: %v", e.name, invalid)
	case errors.As(err, &plain):
		return fmt.Sprintf("what listens at %s does not speak TLS; is it http://, or another port? Check LOCKSIDECAR_URL", e.name)
	case errors.As(err, &noName):
		return fmt.Sprintf("the host of %s is not known: %v; check LOCKSIDECAR_URL", e.name, noName)
	case isRefused(err):
		return fmt.Sprintf("no sidecar listens at %s; check that it runs, that its LOCKSIDECAR_TCP_ADDR has this port, and that LOCKSIDECAR_URL is right", e.name)
	}
	return fmt.Sprintf("no connection to the sidecar at %s: %v; check LOCKSIDECAR_URL, and the network", e.name, err)
}

const (
	// tokenPause is the least time between two reads of a token's file.
	tokenPause = time.Second
	maxToken   = 512
)

// tokenFile is a file whose first line is the token. It may be replaced while it is used.
type tokenFile struct {
	setting setting

	mu     sync.Mutex
	looked time.Time
	token  string
	err    error
}

// header is the value of a header Authorization. The error contains nothing of the file.
func (f *tokenFile) header() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looked.IsZero() || time.Since(f.looked) >= tokenPause {
		f.looked = time.Now()
		token, err := f.read()
		if err == nil || f.token == "" { // a file that is away for a moment changes nothing
			f.token, f.err = token, err
		}
	}
	return "Bearer " + f.token, f.err
}

func (f *tokenFile) read() (string, error) {
	text, err := os.ReadFile(f.setting.value)
	if err != nil {
		return "", invalid("%s cannot be read: %v", f.setting.name, err)
	}
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	token := string(bytes.TrimSpace(line))
	if token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", invalid("%s is %q, and the first line of this file is no token: it has up to %d printable characters and no space", f.setting.name, f.setting.value, maxToken)
	}
	return token, nil
}
