// Package console serves pages about the locks of a sidecar's namespace. It is a client of the sidecar.
//
// Each page works without JavaScript. With it, a stream of server-sent events brings the changed part of the page.
// All viewers of a kind of page share the readings of the sidecar: see feed. Names and keys come from apps, so all
// of them are escaped, first as for a terminal (client.Printable), then as HTML by templ.
//
// The pages are files *.templ, and the Go files that templ makes of them (pages_test.go writes them again). They are compiled, because the
// interpreter of Go's own templates makes the linker keep all methods of all types, in every sidecar.
package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/net/netutil"

	"github.com/locksidecar/locksidecar/internal/client"
)

const (
	// maxConns limits the connections, maxStreams the pages that are open and live.
	maxConns   = 256
	maxStreams = 64
	// maxForm limits a form's body, and maxQuery the query of a page. A key of 512 bytes takes 1536 in them.
	maxForm  = 8 << 10
	maxQuery = 8 << 10
	maxKey   = 512
	// patience limits an answer of the sidecar. writePatience limits the time in which a browser takes an answer.
	patience      = 5 * time.Second
	writePatience = 10 * time.Second
	// breakPatience is longer than most leases: a lock that is broken may stand until its lease ends.
	breakPatience = 30 * time.Second
)

// contentSecurity allows nothing from elsewhere, and no script or style in the page itself.
const contentSecurity = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

//go:embed static
var files embed.FS

// Config of a console.
type Config struct {
	Client *client.Client
	// Hosts are names under which browsers reach the console, besides those of the loopback.
	Hosts []string
	// TraceURL is the address of a trace, with {trace_id}, and perhaps {span_id}. Empty: no links.
	TraceURL string
	// AllowStop and AllowForce add buttons to the page of a key.
	AllowStop, AllowForce bool
}

type console struct {
	Config

	hosts   []string
	csrf    string
	lists   *lru.Cache[listName, *feed[*list]]
	waits   *lru.Cache[string, *feed[*waits]] // by namespace
	spaces  feed[namespaces]
	stats   feed[*totalled]
	topics  *topics
	streams chan struct{}
}

// New makes the server of a console. It serves until ctx ends, and then Shutdown soon returns.
func New(ctx context.Context, config Config) (*http.Server, error) {
	if err := checkTraceURL(config.TraceURL); err != nil {
		return nil, err
	}
	config.Client = config.Client.WithPatience(patience)
	lists, err := lru.New[listName, *feed[*list]](maxLists)
	if err != nil {
		return nil, err
	}
	waits, err := lru.New[string, *feed[*waits]](maxLists)
	if err != nil {
		return nil, err
	}
	c := &console{
		Config: config, hosts: []string{"localhost", "127.0.0.1", "::1"}, csrf: rand.Text(),
		lists: lists, waits: waits, streams: make(chan struct{}, maxStreams),
	}
	for _, host := range config.Hosts {
		c.hosts = append(c.hosts, hostOf(host))
	}
	c.stats.read, c.stats.rest = c.readStats, time.Second
	c.spaces.read, c.spaces.rest = c.readNamespaces, namespacesRest
	if c.topics, err = newTopics(ctx, c); err != nil {
		return nil, err
	}
	return &http.Server{
		Handler: c.guard(c.routes()), ReadHeaderTimeout: patience, ReadTimeout: patience, WriteTimeout: breakPatience + 4*patience,
		IdleTimeout: breakPatience, MaxHeaderBytes: 16 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
	}, nil
}

// Limit limits the connections of a listener.
func Limit(l net.Listener) net.Listener { return netutil.LimitListener(l, maxConns) }

func (c *console) routes() http.Handler {
	mux := http.NewServeMux()
	for path, v := range map[string]viewer{"/{$}": c.listView, "/key": c.keyView, "/waits": c.waitsView, "/sidecars": c.sidecarsView, "/totals": c.totalsView} {
		for _, of := range []string{"", "/n/{namespace}"} { // links within a page are relative, so they stay in its namespace
			mux.HandleFunc("GET "+of+path, func(w http.ResponseWriter, r *http.Request) { c.servePage(w, r, v) })
			mux.HandleFunc("GET "+of+"/live"+path, func(w http.ResponseWriter, r *http.Request) { c.serveLive(w, r, v) })
		}
	}
	public, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // embedded: cannot happen
	}
	static := http.StripPrefix("/static", http.FileServerFS(public))
	mux.HandleFunc("GET /static/{file}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		static.ServeHTTP(w, r)
	})
	if c.AllowStop {
		mux.HandleFunc("POST /stop", func(w http.ResponseWriter, r *http.Request) { c.act(w, r, c.stop) })
	}
	if c.AllowForce {
		mux.HandleFunc("POST /break", func(w http.ResponseWriter, r *http.Request) { c.act(w, r, c.force) })
	}
	return mux
}

// guard refuses requests under another name, because a foreign site's name may lead here (DNS rebinding), and what
// other sites send or load. It sets the headers of every answer.
func (c *console) guard(next http.Handler) http.Handler {
	sameOrigin := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurity)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch err := sameOrigin.Check(r); {
		case !slices.Contains(c.hosts, hostOf(r.Host)):
			http.Error(w, "this name is not one of the console's: see --host", http.StatusForbidden)
		case err != nil, isLoadedElsewhere(r):
			http.Error(w, "only the console's own pages may ask for this", http.StatusForbidden)
		case len(r.URL.RawQuery) > maxQuery:
			http.Error(w, "the address is too long", http.StatusRequestURITooLong)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLoadedElsewhere reports whether the page of another site loads this, other than by a link. The site cannot read
// the answer, but each of its viewers would use up streams, and make the console watch keys.
func isLoadedElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Dest") != "document"
}

// hostOf is a Host header without its port.
func hostOf(header string) string {
	host := header
	if name, _, err := net.SplitHostPort(header); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func (c *console) mayAct(r *http.Request) bool {
	return subtle.ConstantTimeCompare([]byte(r.PostFormValue("csrf")), []byte(c.csrf)) == 1
}

func checkTraceURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(strings.NewReplacer("{trace_id}", "0", "{span_id}", "0").Replace(text))
	switch {
	case err != nil:
		return err
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return errors.New("it must be an http or https URL")
	case !strings.Contains(text, "{trace_id}"):
		return errors.New("it must contain {trace_id}")
	}
	return nil
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-`)

// traceURL is the address of a trace; empty if there is none.
func (c *console) traceURL(parent *string) string {
	if c.TraceURL == "" || parent == nil {
		return ""
	}
	ids := traceparent.FindStringSubmatch(*parent)
	if ids == nil {
		return ""
	}
	return strings.NewReplacer("{trace_id}", ids[1], "{span_id}", ids[2]).Replace(c.TraceURL)
}

func keyURL(key string) string   { return "./key?key=" + url.QueryEscape(key) }
func typeURL(kind string) string { return "./?type=" + url.QueryEscape(kind) }

// holderURL is the list of the locks whose holder's name contains that of w.
func holderURL(w who) string {
	name := w.Pod
	if w.Session != "" {
		name += "/" + w.Session
	}
	return "./?q=" + url.QueryEscape(name)
}

// duration is for people: "3 m 12 s".
func duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return "< 1 s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d m %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d m", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// durationIf has a dash for what has no duration.
func durationIf(known bool, ms int64) string {
	if !known {
		return "–"
	}
	return duration(ms)
}

func number[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// atLeast is a number that was read up to a limit: "10000+" if there are more.
func atLeast(more bool, n int) string {
	if more {
		return number(n) + "+"
	}
	return number(n)
}

// counted is a number of things: "1 lock", "2 locks".
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return number(n) + " " + thing + "s"
}
