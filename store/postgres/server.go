package postgres

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// errElsewhere: connections would see different locks.
var errElsewhere = errors.New("it names other hosts or another database than at the start; restart the sidecar if this is intended")

// server contains the address of the database and the login. Its URL is read before each new connection,
// with the files that it names. If the new configuration cannot be used, the previous one stays in use.
type server struct {
	s      *Space
	what   string // what uses this server, for the log
	again  func() (string, error)
	accept func(primary) error // accepts or refuses the server of a new connection

	mu sync.Mutex
	// good is the last configuration that could be used.
	good *pgx.ConnConfig
	// wrong is the error of the last read that was logged, or empty.
	wrong string
	// refused is the last refusal, at refusedAt. Nil: a login was accepted since.
	refused   error
	refusedAt time.Time
}

// refusedPause follows a refused login, because servers may lock out a user after several refusals.
const refusedPause = 500 * time.Millisecond

func newServer(s *Space, what, url string, again func() (string, error), accept func(primary) error) (*server, error) {
	good, err := s.connConfig(url, accept)
	if err != nil {
		return nil, err
	}
	if again == nil {
		again = func() (string, error) { return url, nil }
	}
	return &server{s: s, what: what, again: again, accept: accept, good: good}, nil
}

// now returns the present configuration for a connection. The caller may change it.
func (v *server) now(ctx context.Context) (*pgx.ConnConfig, error) {
	good, err := v.before()
	if err != nil {
		return nil, err
	}
	next, err := v.read(good)
	newLogin := err == nil && (next.User != good.User || next.Password != good.Password)
	newTLS := err == nil && !sameTLS(next.TLSConfig, good.TLSConfig)
	if newLogin || newTLS {
		// The server may change its password later than the file, so the old login can still be right.
		err = knock(ctx, next)
		if err != nil && !refuses(err) {
			return nil, err
		}
	}
	if err != nil {
		v.note(err)
		return v.noting(good), nil
	}
	v.adopt(next, newLogin)
	return v.noting(next), nil
}

// before returns the configuration of earlier connections. It fails if the server has just refused it.
func (v *server) before() (*pgx.ConnConfig, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refused != nil && time.Since(v.refusedAt) < refusedPause {
		return nil, v.refused
	}
	return v.good, nil
}

// noting copies a configuration, so that each connection records whether the login is accepted.
func (v *server) noting(config *pgx.ConnConfig) *pgx.ConnConfig {
	note := func(refused error) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.refused, v.refusedAt = refused, time.Now()
	}
	config = config.Copy()
	onError, validate := config.OnPgError, config.ValidateConnect
	config.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if notLetIn(err) {
			note(err)
		}
		return onError(conn, err)
	}
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		note(nil)
		return validate(ctx, conn)
	}
	return config
}

func (v *server) read(good *pgx.ConnConfig) (*pgx.ConnConfig, error) {
	url, err := v.again()
	if err != nil {
		return nil, err
	}
	next, err := v.s.connConfig(url, v.accept)
	if err == nil && target(next) != target(good) {
		err = errElsewhere
	}
	return next, err
}

func knock(ctx context.Context, config *pgx.ConnConfig) error {
	config = config.Copy()
	config.Tracer = nil
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	_ = conn.Close(ctx)
	return nil
}

// refuses reports whether the server answered, and either side refused the login or a certificate.
func refuses(err error) bool {
	_, answered := errors.AsType[*pgconn.PgError](err)
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err) // for sslmode=verify-ca
	_, alert := errors.AsType[tls.AlertError](err)
	return answered || unverified || unknown || alert
}

func sameTLS(a, b *tls.Config) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.RootCAs.Equal(b.RootCAs) && slices.EqualFunc(a.Certificates, b.Certificates, func(x, y tls.Certificate) bool {
		return slices.EqualFunc(x.Certificate, y.Certificate, bytes.Equal)
	})
}

func (v *server) note(err error) {
	v.mu.Lock()
	known := v.wrong == err.Error()
	v.wrong = err.Error()
	v.mu.Unlock()
	if !known {
		v.s.log.Warn("the store's URL cannot be used now, so the previous one stays in use", "of", v.what, "error", err)
	}
}

func (v *server) adopt(next *pgx.ConnConfig, newLogin bool) {
	v.mu.Lock()
	first := newLogin && (v.good.User != next.User || v.good.Password != next.Password)
	v.good, v.wrong = next, ""
	v.mu.Unlock()
	if first { // another connection may have logged it at the same time
		v.s.log.Info("the store's URL has another user or password: new connections use it", "of", v.what, "user", next.User)
	}
	v.s.warnUnverified(next)
}

// target returns the hosts and the database of a URL. The default database has the user's name.
func target(c *pgx.ConnConfig) string {
	database, hosts := placeOf(&c.Config)
	return strings.Join(hosts, ",") + "/" + database
}

// Place is where a valid URL's locks are: its database, and its hosts.
func Place(url string) (database string, hosts []string) {
	c, err := pgconn.ParseConfig(url)
	if err != nil {
		return "", nil
	}
	return placeOf(c)
}

func placeOf(c *pgconn.Config) (database string, hosts []string) {
	for _, h := range waysTo(c) {
		hosts = append(hosts, net.JoinHostPort(h.Host, strconv.Itoa(int(h.Port))))
	}
	return cmp.Or(c.Database, c.User), slices.Compact(hosts) // with sslmode=prefer, each host is listed twice
}

func waysTo(c *pgconn.Config) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
}

// warnUnverified logs once that another server could pretend to be the database.
func (s *Space) warnUnverified(c *pgx.ConnConfig) {
	for _, h := range waysTo(&c.Config) {
		if !local(h) && (h.TLSConfig == nil || h.TLSConfig.InsecureSkipVerify) {
			s.sayOnce(slog.LevelWarn, "the identity of the database server is not verified, so another server could read the password; use sslmode=verify-full",
				"server", h.Host)
			return
		}
	}
}

func local(h *pgconn.FallbackConfig) bool {
	network, _ := pgconn.NetworkAddress(h.Host, h.Port)
	ip, err := netip.ParseAddr(h.Host)
	return network == "unix" || h.Host == "localhost" || err == nil && ip.IsLoopback()
}
