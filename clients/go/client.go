package locksidecar

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	defaultTimeout   = 10 * time.Second
	defaultReconnect = 30 * time.Second
	// podSocket is the socket in pods, which have its folder, and homeSocket that of other machines. The sidecar has the same rule.
	podSocket  = "/run/locksidecar/locksidecar.sock"
	homeSocket = ".locksidecar/locksidecar.sock"
)

// Config is the configuration of a client. Its zero value has the defaults.
type Config struct {
	// Socket is the sidecar's socket. Default: LOCKSIDECAR_SOCKET, else /run/locksidecar/locksidecar.sock if its folder is there, else
	// ~/.locksidecar/locksidecar.sock.
	Socket string
	// URL names the sidecar instead of Socket: unix:///PATH, http://HOST:PORT or https://HOST:PORT. Default: LOCKSIDECAR_URL, which wins over
	// LOCKSIDECAR_SOCKET.
	URL string
	// TokenFile is a file whose first line is the token for calls over TCP. Default: LOCKSIDECAR_TOKEN_FILE, else none.
	TokenFile string
	// CAFile is a file with the CA of the sidecar's certificate, in PEM. Default: LOCKSIDECAR_CA_FILE, else the system's.
	CAFile string
	// Name is the public name of the session, which others see. Default: a short random id.
	Name string
	// TTL is how long the locks outlive a dead sidecar (less than twice that). Default: the sidecar's.
	TTL time.Duration
	// Timeout is the most time for an answer, in addition to a wait. Default: 10 s.
	Timeout time.Duration
	// Reconnect is how long waits and event streams go on in an outage of the sidecar. Default: 30 s; negative: not at all.
	Reconnect time.Duration
	// OnOutage is called when a wait or an event stream goes on in an outage, with its reason, once in each outage. It must not block.
	OnOutage func(error)
	// Tracer makes spans. Default: none.
	Tracer Tracer
	// UserAgent is sent with each call. Default: locksidecar-go.
	UserAgent string
}

// Client gets locks from the sidecar. Make one for each process; goroutines share it. See the package's documentation about its session.
type Client struct {
	t      *transport
	config Config

	mu        sync.Mutex
	session   *session // nil: none, or it is over
	opening   *opening // nil: none is being opened
	connected bool     // there was a session
	closed    bool
}

// opening is a session that is being opened, for all calls that wait for it.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

// New makes a client, without a call.
func New(config Config) *Client {
	at := endpointOf(&config, os.Getenv, func(path string) bool { _, err := os.Stat(path); return err == nil })
	if config.Timeout <= 0 {
		config.Timeout = defaultTimeout
	}
	if config.Reconnect == 0 {
		config.Reconnect = defaultReconnect
	}
	config.Reconnect = max(config.Reconnect, 0)
	return &Client{t: newTransport(at, &config), config: config}
}

// usualSocket is the socket of a sidecar that was not told another one.
func usualSocket(env func(string) string, exists func(string) bool) string {
	if given := env("LOCKSIDECAR_SOCKET"); given != "" {
		return given
	}
	home := env("HOME")
	if !filepath.IsAbs(home) || exists(filepath.Dir(podSocket)) {
		return podSocket
	}
	return filepath.Join(home, homeSocket)
}

// Socket is the path of the sidecar's socket, empty over TCP.
func (c *Client) Socket() string { return c.t.at.socket }

// Address is the path of the sidecar's socket, or its URL over TCP.
func (c *Client) Address() string { return c.t.at.name }

// Connect opens the session now, so that a missing sidecar shows at the start.
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.open(ctx)
	return err
}

// Close ends the session, which releases all locks, and ends waiting calls and event streams with ErrClosed.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	s, o := c.session, c.opening
	c.mu.Unlock()
	if o != nil {
		<-o.done
		s = o.session
	}
	if s != nil {
		s.close()
	}
	c.t.close()
	return nil
}

// open is the session; it opens one if there is none.
func (c *Client) open(ctx context.Context) (*session, error) {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return nil, closedError()
	case c.session != nil:
		defer c.mu.Unlock()
		return c.session, nil
	case c.opening == nil:
		c.opening = &opening{done: make(chan struct{})}
		go c.opens(c.opening) //nolint:gosec // the session outlives the call that opens it
	}
	o := c.opening
	c.mu.Unlock()
	select {
	case <-o.done:
		return o.session, o.err
	case <-ctx.Done():
		return nil, c.t.failure(ctx, call{method: http.MethodPost, path: "/v1/sessions"}, ctx.Err())
	}
}

// opens runs in a goroutine of its own, and opens a session. The calls that wait for it may leave meanwhile.
func (c *Client) opens(o *opening) {
	s, err := openSession(context.Background(), c.t, &c.config, func(ended *session) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.session == ended {
			c.session = nil
		}
	})
	o.session, o.err = s, err
	c.mu.Lock()
	c.opening = nil
	if o.err == nil {
		c.connected = true
		if !s.isOver() {
			c.session = s
		}
	}
	c.mu.Unlock()
	close(o.done)
}

// caller is the session if there is one, else one for calls without a session.
func (c *Client) caller(ctx context.Context) (*session, error) {
	c.mu.Lock()
	s, closed := c.session, c.closed
	c.mu.Unlock()
	if closed {
		return nil, closedError()
	}
	if s != nil {
		return s, nil
	}
	about, err := describe(ctx, c.t, c.config.Timeout)
	if err != nil {
		return nil, err
	}
	return noSession(c.t, about, c.config.Timeout), nil
}

// twice makes a repeatable call, and repeats it if its connection or session has ended.
func (c *Client) twice(ctx context.Context, get func(context.Context) (*session, error), run func(*session) error) error {
	try := func() (s *session, err error) {
		if s, err = get(ctx); err == nil {
			err = run(s)
		}
		return s, err
	}
	s, err := try()
	if !brokeOff(err) || ctx.Err() != nil {
		return err
	}
	if s != nil && isCode(err, "session_ended") {
		s.end()
	}
	_, err = try()
	return err
}

func (c *Client) read(ctx context.Context, run func(*session) error) error {
	return c.twice(ctx, c.caller, run)
}

// Acquire waits for a lock, until ctx ends, or as [Wait] says. Release it with [Lock.Release]; [Client.Do] does both. The error is
// ErrWaitTimeout, with a wait of 0 ErrLockHeld, and that of ctx if it has ended. Then nothing stays granted.
func (c *Client) Acquire(ctx context.Context, key string, opts ...Option) (*Lock, error) {
	locks, err := c.acquire(ctx, []string{key}, false, opts)
	if err != nil {
		return nil, err
	}
	return locks[0], nil
}

// TryAcquire gets a lock without a wait: ok is false if another caller has it.
func (c *Client) TryAcquire(ctx context.Context, key string, opts ...Option) (lock *Lock, ok bool, err error) {
	lock, err = c.Acquire(ctx, key, append(slices.Clip(opts), Wait(0))...)
	if errors.Is(err, ErrLockHeld) {
		return nil, false, nil
	}
	return lock, err == nil, err
}

// AcquireMany gets 1 to 100 different locks, all or none. There are no deadlocks, whatever the order of the keys. The error names the
// first key that is held.
func (c *Client) AcquireMany(ctx context.Context, keys []string, opts ...Option) (Locks, error) {
	if len(keys) == 0 {
		return nil, invalid("keys: they are 1 to 100 different ones")
	}
	return c.acquire(ctx, keys, true, opts)
}

// Shared waits for a share of a lock: shared holders do not exclude each other. It is Acquire with the option [Shared].
func (c *Client) Shared(ctx context.Context, key string, opts ...Option) (*Lock, error) {
	return c.Acquire(ctx, key, append(slices.Clip(opts), Shared())...)
}

func (c *Client) acquire(ctx context.Context, keys []string, many bool, opts []Option) (locks Locks, err error) {
	o, err := optionsOf(opts)
	if err != nil {
		return nil, err
	}
	if o.reentrant && o.owner == "" {
		if o.owner = ownerOf(ctx); o.owner == "" {
			o.owner = "task-" + newUUID()
		}
	}
	o.body.Owner, o.body.Reentrant = o.owner, o.reentrant
	if many {
		o.body.Keys = keys
	}
	if err := c.refuseSelfWait(ctx, keys, o); err != nil {
		return nil, err
	}
	mode := o.body.Mode
	if mode == "" {
		mode = ModeExclusive
	}
	err = c.t.traced(ctx, Span{Name: "lock.acquire", Keys: keys, Mode: mode}, func(calls context.Context) (SpanEnd, error) {
		what := &asked{keys: keys}
		err := c.waiting(calls, o, func(s *session, body acquireBody) error {
			grants, held, err := s.acquire(calls, what, body)
			for i := range grants {
				if err == nil {
					locks = append(locks, newLock(ctx, s, held[i], &grants[i], o))
				}
			}
			return err
		})
		if err != nil && what.unanswered && !o.named {
			c.withdraw(what, o)
		}
		return granted(locks), err
	})
	return locks, err
}

func granted(locks Locks) SpanEnd {
	end := SpanEnd{Result: "granted"}
	if len(locks) == 1 {
		end.Token = locks[0].token
		if locks[0].wire.Reentry > 1 {
			end.Result = "reentered"
		}
	}
	return end
}

// withdraw releases what an acquire may have got, whose caller has left or whose answer was lost. If the app has named the request,
// other parts of it may hold the grant, so that stays.
func (c *Client) withdraw(what *asked, o *options) {
	c.mu.Lock()
	s, closed := c.session, c.closed
	c.mu.Unlock()
	if closed {
		return
	}
	if s == nil {
		if o.body.Bind != BindTTL {
			return // the grant has ended with its session
		}
		s = noSession(c.t, &Description{}, c.config.Timeout)
	}
	s.withdraw(what, o.body.RequestID)
}

// waiting acquires. A call that waits goes on after an outage of the sidecar, for the rest of its time.
func (c *Client) waiting(ctx context.Context, o *options, run func(*session, acquireBody) error) error {
	body := o.body
	if body.WaitMS == 0 {
		return c.twice(ctx, c.open, func(s *session) error { return run(s, body) })
	}
	began := time.Now()
	p := patience{limit: c.config.Reconnect}
	if o.waitSet {
		p.limit = min(p.limit, o.wait)
	}
	var last *session
	told := false
	for {
		s, err := c.open(ctx)
		if err == nil {
			if s != last {
				p.renew()
				last, told = s, false
			}
			if err = run(s, body); err == nil {
				return nil
			}
			if isCode(err, "session_ended") {
				s.end() // before its stream ends
			}
		}
		c.mu.Lock()
		closed, connected := c.closed, c.connected
		c.mu.Unlock()
		switch {
		case closed && isAway(err):
			return closedError()
		case closed, !connected, ctx.Err() != nil, !isAway(err): // a client without a session does not wait for a sidecar
			return err
		}
		if !told && c.config.OnOutage != nil {
			c.config.OnOutage(err)
		}
		told = true
		if pause := p.pause(ctx, err); pause != nil {
			if ctx.Err() != nil {
				return c.t.failure(ctx, call{method: http.MethodPut, path: "/v1/locks"}, ctx.Err())
			}
			return pause
		}
		if o.waitSet {
			body.WaitMS = max(1, toMS(o.wait-time.Since(began)))
		}
	}
}

// Do runs a function under a lock, and releases it. The function's context ends with ctx, and when the lock is lost, with ErrLockLost as
// its cause. If the lock was lost, Do returns ErrLockLost, also if the function returns nil. If the function fails, its error is
// returned, joined with that of the release. If it panics, the lock is released.
func (c *Client) Do(ctx context.Context, key string, run func(ctx context.Context, lock *Lock) error, opts ...Option) error {
	lock, err := c.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	return doUnder(ctx, Locks{lock}, func(ctx context.Context) error { return run(ctx, lock) }, nil)
}

// DoMany is Do with several locks, all or none.
func (c *Client) DoMany(ctx context.Context, keys []string, run func(ctx context.Context, locks Locks) error, opts ...Option) error {
	locks, err := c.AcquireMany(ctx, keys, opts...)
	if err != nil {
		return err
	}
	return doUnder(ctx, locks, func(ctx context.Context) error { return run(ctx, locks) }, nil)
}

// doUnder runs a function, and then releases locks, with the options that judge has for its error.
func doUnder(ctx context.Context, locks Locks, run func(context.Context) error, judge func(error) []ReleaseOption) (err error) {
	ctx, cancel := locks.Context(ctx)
	defer cancel()
	returned := false
	defer func() {
		if !returned { // it panics, or has called runtime.Goexit
			err = errors.New("panic")
		}
		var opts []ReleaseOption
		if judge != nil {
			opts = judge(err)
		}
		if failed := locks.Release(opts...); failed != nil && !errors.Is(err, ErrLockLost) {
			err = join(err, failed)
		}
	}()
	err = run(ctx)
	returned = true
	return err
}

func join(err, more error) error {
	if err == nil {
		return more
	}
	return errors.Join(err, more)
}

// GetOption is an option of Get.
type GetOption func(*bool)

// Fresh asks the store, and not the sidecar's memory.
func Fresh() GetOption { return func(fresh *bool) { *fresh = true } }

// Get shows a lock, free or held.
func (c *Client) Get(ctx context.Context, key string, opts ...GetOption) (*LockInfo, error) {
	fresh := false
	for _, option := range opts {
		option(&fresh)
	}
	info := &LockInfo{}
	err := c.read(ctx, func(s *session) error {
		return s.do(ctx, call{method: http.MethodGet, path: lockPath(key, ""), about: subject{key: key}, fresh: fresh, repeatable: true}, info)
	})
	if err != nil {
		return nil, err
	}
	return info, nil
}

// Query chooses locks or waiting calls of a list.
type Query struct {
	// Scope is of locks. Default: ScopeAll.
	Scope Scope
	// Prefix is what the keys begin with, and Type what is before their first colon (only of locks). Empty: all keys.
	Prefix, Type string
	// PageSize is the most items of one answer, up to 1000. 0: 100.
	PageSize int
}

func (q *Query) values() url.Values {
	values := url.Values{}
	for name, value := range map[string]string{"scope": string(q.Scope), "prefix": q.Prefix, "type": q.Type} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if q.PageSize != 0 {
		values.Set("limit", strconv.Itoa(q.PageSize))
	}
	return values
}

// Locks lists the held locks by key, page by page.
func (c *Client) Locks(ctx context.Context, query Query) iter.Seq2[*LockInfo, error] {
	return pages[LockInfo](ctx, c, "/v1/locks", query, "list", "locks")
}

// Waiters lists the calls of all pods that wait, by key and in the order of each queue.
func (c *Client) Waiters(ctx context.Context, query Query) iter.Seq2[*Waiter, error] {
	return pages[Waiter](ctx, c, "/v1/waiters", query, "waiters", "waiters")
}

// WaitersOf lists the calls that wait for a key, in their order.
func (c *Client) WaitersOf(ctx context.Context, key string) iter.Seq2[*Waiter, error] {
	return pages[Waiter](ctx, c, lockPath(key, "/waiters"), Query{}, "waiters", "waiters")
}

func pages[T any](ctx context.Context, c *Client, path string, query Query, feature, member string) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		values := query.values()
		for {
			var answer map[string]json.RawMessage
			err := c.read(ctx, func(s *session) error {
				if err := lacking(s.about, feature); err != nil {
					return err
				}
				return s.do(ctx, call{method: http.MethodGet, path: path + queryOf(values), repeatable: true}, &answer)
			})
			var items []*T
			var next string
			if err == nil {
				err = errors.Join(json.Unmarshal(answer[member], &items), json.Unmarshal(answer["next_cursor"], &next))
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			values.Set("cursor", next)
		}
	}
}

// queryOf encodes a query. A plus means a space only in forms.
func queryOf(values url.Values) string {
	if len(values) == 0 {
		return ""
	}
	return "?" + strings.ReplaceAll(values.Encode(), "+", "%20")
}

// Stop asks the holder of a lock in any pod to finish and to release it, or all shared holders. They may go on. The reason is for
// people, and may be empty. The error is ErrNotHeld if there is no holder.
func (c *Client) Stop(ctx context.Context, key, reason string) error {
	return c.stop(ctx, key, reason, 0)
}

// StopHolder is Stop for the holder that has the token.
func (c *Client) StopHolder(ctx context.Context, key string, token int64, reason string) error {
	return c.stop(ctx, key, reason, token)
}

func (c *Client) stop(ctx context.Context, key, reason string, token int64) error {
	var body struct {
		Reason *string `json:"reason,omitempty"`
	}
	if reason != "" {
		body.Reason = &reason
	}
	s, err := c.caller(ctx)
	if err == nil {
		err = lacking(s.about, "stop")
	}
	if err != nil {
		return err
	}
	path := lockPath(key, "/stop"+queryOf(tokenOf(token)))
	return c.t.do(ctx, call{method: http.MethodPost, path: path, body: body, timeout: c.config.Timeout, about: subject{key: key}}, nil)
}

func tokenOf(token int64) url.Values {
	values := url.Values{}
	if token != 0 {
		values.Set("token", strconv.FormatInt(token, 10))
	}
	return values
}

// ForceRelease breaks a lock of any holder, or of all shared holders. It returns when the grant is over, at the latest when its
// lease ends. The holder may still be working. The error is ErrForbidden without LOCKSIDECAR_ALLOW_FORCE, and ErrNotHeld if there is no holder.
func (c *Client) ForceRelease(ctx context.Context, key string) error {
	return c.force(ctx, key, 0)
}

// ForceReleaseHolder is ForceRelease for the holder that has the token.
func (c *Client) ForceReleaseHolder(ctx context.Context, key string, token int64) error {
	return c.force(ctx, key, token)
}

func (c *Client) force(ctx context.Context, key string, token int64) error {
	values := tokenOf(token)
	values.Set("force", "true")
	return c.t.do(ctx, call{method: http.MethodDelete, path: lockPath(key, queryOf(values)), waits: true, about: subject{key: key}}, nil)
}

// Release releases a lock by its token: one of [BindToTTL] from anywhere, or one of this client.
func (c *Client) Release(ctx context.Context, key string, token int64, opts ...ReleaseOption) (*Released, error) {
	body, err := releaseOf(token, "", opts)
	if err != nil {
		return nil, err
	}
	var answer *Released
	err = c.t.traced(ctx, Span{Name: "lock.release", Keys: []string{key}, Token: token}, func(ctx context.Context) (SpanEnd, error) {
		s, err := c.caller(ctx)
		if err == nil {
			answer, err = s.release(ctx, key, body)
		}
		return SpanEnd{Result: "released", Token: token}, err
	})
	return answer, err
}

// ReleaseRequest releases what the acquire with this request id has got, or may get: see [RequestID]. Free is false if it has nothing.
func (c *Client) ReleaseRequest(ctx context.Context, key, uuid string) (*Released, error) {
	s, err := c.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.release(ctx, key, releaseBody{RequestID: uuid})
}

// Check asks whether a lock is held under its token.
func (c *Client) Check(ctx context.Context, key string, token int64) (*Status, error) {
	return c.amend(ctx, key, amendBody{Token: token})
}

// Update replaces the data of a lock by its token.
func (c *Client) Update(ctx context.Context, key string, token int64, data any) (*Status, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return nil, invalid("data: it cannot be made into JSON: %v", err)
	}
	return c.amend(ctx, key, amendBody{Token: token, Data: text})
}

// Extend sets the remaining time of a lock of [BindToTTL] by its token, from now.
func (c *Client) Extend(ctx context.Context, key string, token int64, ttl time.Duration) (*Status, error) {
	n := toMS(ttl)
	return c.amend(ctx, key, amendBody{Token: token, TTLMS: &n})
}

func (c *Client) amend(ctx context.Context, key string, body amendBody) (*Status, error) {
	var status *Status
	err := c.read(ctx, func(s *session) error {
		answer, err := s.amend(ctx, key, body, 0)
		if err == nil {
			status = statusOf(answer)
		}
		return err
	})
	return status, err
}

// Describe asks the sidecar for its version and features.
func (c *Client) Describe(ctx context.Context) (*Description, error) {
	s, err := c.caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.about, nil
}

// Call makes any call of the API, without the session: https://github.com/locksidecar/locksidecar/blob/main/api/openapi.yaml. body (nil: none) is sent
// as JSON, and the answer is decoded into answer (nil: ignored; a *json.RawMessage gets it as it is). timeout limits the time for the
// answer; 0: [Config.Timeout]; negative: no limit. A GET asks the store. It is for what has no method of its own.
func (c *Client) Call(ctx context.Context, method, path string, body, answer any, timeout time.Duration) error {
	of := call{method: method, path: path, body: body, fresh: method == http.MethodGet, waits: timeout < 0 || timeout > c.config.Timeout, timeout: max(timeout, 0)}
	if timeout == 0 {
		of.timeout = c.config.Timeout
	}
	return c.t.do(ctx, of, answer)
}
