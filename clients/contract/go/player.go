package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

const (
	answerTime  = time.Minute
	repeatPause = 5 * time.Millisecond
)

var stepMembers = []string{"expect", "until", "save", "start"}

// party is a session of a case: a client, its locks, and the news of them.
type party struct {
	client *locksidecar.Client
	events chan members

	mu    sync.Mutex
	locks []*locksidecar.Lock
	ended bool
}

// started is a call that was started.
type started struct {
	done   chan struct{}
	result any
	err    error
	cancel context.CancelFunc
}

// block is a Do that was entered.
type block struct {
	leave chan error
	left  chan error
}

// player plays one case.
type player struct {
	sidecar *locksidecartest.Sidecar
	at      locksidecar.Config // how to reach it
	prefix  string
	saved   members
	parties map[string]*party
	nobody  *party
	watches map[string]chan members
	started map[string]*started
	blocks  map[string]*block
	ctx     context.Context
	ended   context.CancelFunc
}

func newPlayer(s *locksidecartest.Sidecar, at locksidecar.Config, prefix string) *player {
	p := &player{
		sidecar: s, at: at, prefix: prefix, saved: members{}, parties: map[string]*party{}, watches: map[string]chan members{},
		started: map[string]*started{}, blocks: map[string]*block{},
	}
	p.ctx, p.ended = context.WithCancel(context.Background())
	p.nobody = p.party("", 0)
	return p
}

func (p *player) party(name string, ttl time.Duration) *party {
	config := p.at
	config.Name, config.TTL = name, ttl
	config.Reconnect = -1 // a wait ends with the sidecar's answer
	return &party{client: locksidecar.New(config), events: make(chan members, 1000)}
}

// end closes what the case has opened.
func (p *player) end() {
	p.ended()
	for _, s := range p.started {
		<-s.done
	}
	for _, one := range p.parties {
		_ = one.client.Close()
	}
	_ = p.nobody.client.Close()
}

func (p *player) play(steps []map[string]any) error {
	for i, step := range steps {
		if err := p.step(plain(step).(members)); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, show(plain(step)), err)
		}
	}
	if len(p.started) > 0 {
		return errors.New("a call was neither finished nor cancelled")
	}
	return nil
}

func (p *player) step(step members) error {
	verb := ""
	for name := range step {
		if !slices.Contains(stepMembers, name) {
			verb = name
		}
	}
	filled, err := fillIn(step[verb], p.saved)
	if err != nil {
		return err
	}
	given, _ := filled.(members)
	if given == nil {
		given = members{}
	}
	if name, is := step["start"].(string); is {
		ctx, cancel := context.WithCancel(p.ctx)
		s := &started{done: make(chan struct{}), cancel: cancel}
		p.started[name] = s
		go func() {
			defer close(s.done)
			s.result, s.err = p.do(ctx, verb, given)
		}()
		return nil
	}
	want := step["expect"]
	until, repeats := step["until"]
	if repeats {
		want = until
	}
	if want, err = fillIn(want, p.saved); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(p.ctx, answerTime)
	defer cancel()
	for {
		result, err := p.do(ctx, verb, given)
		if err != nil {
			return err
		}
		if want == nil && verb == "open" {
			want = members{"opened": true}
		}
		wrong := error(nil)
		if want != nil {
			wrong = difference(want, result, "result")
		}
		if wrong == nil {
			p.save(step["save"], result)
			return nil
		}
		if !repeats || ctx.Err() != nil {
			return fmt.Errorf("%w; the result was %s", wrong, show(result))
		}
		time.Sleep(repeatPause)
	}
}

func (p *player) save(save, result any) {
	names, _ := save.(members)
	for name, path := range names {
		value := result
		for part := range strings.SplitSeq(path.(string), ".") {
			if list, is := value.([]any); is {
				var i int
				_, _ = fmt.Sscan(part, &i)
				value = list[i]
			} else {
				value = value.(members)[part]
			}
		}
		p.saved[name] = value
	}
}

// do makes the call of a step. Its result has no prefix before the keys.
func (p *player) do(ctx context.Context, verb string, given members) (any, error) {
	a := arguments{}
	maps.Copy(a, given)
	for _, name := range []string{"key", "prefix", "type"} {
		if text, is := a[name].(string); is {
			a[name] = p.prefix + text
		}
	}
	if keys, is := a["keys"].([]any); is {
		with := make([]any, len(keys))
		for i := range keys {
			with[i] = p.prefix + keys[i].(string)
		}
		a["keys"] = with
	}
	if verb == "list" && a["prefix"] == nil && a["type"] == nil {
		a["prefix"] = p.prefix
	}
	result, err := p.call(ctx, verb, a)
	if err != nil {
		var e *locksidecar.Error
		if !errors.As(err, &e) {
			return nil, err
		}
		result = refused(e)
	}
	return p.bare(plain(result), ""), nil
}

func (p *player) bare(value any, name string) any {
	switch v := value.(type) {
	case string:
		if name == "key" || name == "type" || name == "keys" {
			return strings.TrimPrefix(v, p.prefix)
		}
	case []any:
		for i := range v {
			v[i] = p.bare(v[i], name)
		}
	case members:
		for member := range v {
			if member != "data" && member != "result" {
				v[member] = p.bare(v[member], member)
			}
		}
	}
	return value
}

// arguments are those of a step.
type arguments members

func (a arguments) text(name string) string { text, _ := a[name].(string); return text }
func (a arguments) has(name string) bool    { _, has := a[name]; return has }
func (a arguments) number(name string) int64 {
	n, _ := a[name].(float64)
	return int64(n)
}

func (a arguments) ms(name string) time.Duration {
	return time.Duration(a.number(name)) * time.Millisecond
}

//nolint:funlen // a table of the verbs
func (p *player) call(ctx context.Context, verb string, a arguments) (any, error) {
	who := p.nobody
	if name := a.text("session"); name != "" {
		if who = p.parties[name]; who == nil {
			return nil, fmt.Errorf("no session %s was opened", name)
		}
	}
	c, key, token := who.client, a.text("key"), a.number("token")
	switch verb {
	case "open":
		return p.open(ctx, a)
	case "close":
		return members{}, c.Close()
	case "acquire":
		return p.acquire(ctx, who, key, a)
	case "acquire_many":
		return p.acquireMany(ctx, who, a)
	case "enter":
		return p.enter(who, key, a)
	case "leave":
		return p.leave(a)
	case "release":
		return p.release(ctx, who, key, token, a)
	case "force_release":
		force := func() error { return c.ForceRelease(ctx, key) }
		if a.has("token") {
			force = func() error { return c.ForceReleaseHolder(ctx, key, token) }
		}
		err := force()
		return members{"released": true, "key": key}, err
	case "check", "extend", "downgrade":
		status, err := p.amend(ctx, verb, who, key, token, a)
		if err != nil {
			return nil, err
		}
		return checked(status), nil
	case "get":
		var opts []locksidecar.GetOption
		if a["fresh"] == true {
			opts = append(opts, locksidecar.Fresh())
		}
		info, err := c.Get(ctx, key, opts...)
		if err != nil {
			return nil, err
		}
		return shown(info), nil
	case "list":
		return p.list(ctx, c, a)
	case "stop":
		stop := func() error { return c.Stop(ctx, key, a.text("reason")) }
		if a.has("token") {
			stop = func() error { return c.StopHolder(ctx, key, token, a.text("reason")) }
		}
		err := stop()
		return members{"requested": true, "key": key}, err
	case "watch":
		return p.watch(a)
	case "next":
		return p.next(ctx, a.text("of"))
	case "finish", "cancel":
		return p.finish(a.text("call"), verb == "cancel")
	case "sidecar":
		p.sidecar.Signal(syscall.SIGTERM)
		return members{"sent": true}, nil
	case "features":
		return c.Describe(ctx)
	}
	return nil, fmt.Errorf("this runner does not know %s", verb)
}

func (p *player) open(ctx context.Context, a arguments) (any, error) {
	if name, given := a["name"]; given && name == "" {
		// The zero value of a Config is the default. So this wrong call cannot be made with this client.
		return members{"error": "invalid_request", "detail": "name: it is empty"}, nil
	}
	who := p.party(a.text("name"), a.ms("ttl_ms"))
	if err := who.client.Connect(ctx); err != nil {
		return nil, err
	}
	p.parties[a.text("as")] = who
	return members{"opened": true}, nil
}

func optionsOf(a arguments) []locksidecar.Option {
	opts := []locksidecar.Option{}
	if wait := a.number("wait_ms"); wait != -1 {
		opts = append(opts, locksidecar.Wait(a.ms("wait_ms"))) // without wait_ms it does not wait
	}
	add := func(name string, option func() locksidecar.Option) {
		if a.has(name) {
			opts = append(opts, option())
		}
	}
	add("ttl_ms", func() locksidecar.Option { return locksidecar.TTL(a.ms("ttl_ms")) })
	add("max_hold_ms", func() locksidecar.Option { return locksidecar.MaxHold(a.ms("max_hold_ms")) })
	add("min_hold_ms", func() locksidecar.Option { return locksidecar.MinHold(a.ms("min_hold_ms")) })
	add("owner", func() locksidecar.Option { return locksidecar.Owner(a.text("owner")) })
	add("limit", func() locksidecar.Option { return locksidecar.Limit(int(a.number("limit"))) })
	add("data", func() locksidecar.Option { return locksidecar.Data(a["data"]) })
	add("request_id", func() locksidecar.Option { return locksidecar.RequestID(a.text("request_id")) })
	if a["reentrant"] == true {
		opts = append(opts, locksidecar.Reentrant())
	}
	if a.text("bind") == "ttl" {
		opts = append(opts, locksidecar.BindToTTL())
	}
	if a.text("on_success") == "skip" {
		opts = append(opts, locksidecar.SkipIfDone())
	}
	if a.text("mode") == "shared" {
		opts = append(opts, locksidecar.Shared())
	}
	return opts
}

// follow adds the news of a lock to the events of its session.
func (w *party) follow(l *locksidecar.Lock) {
	w.mu.Lock()
	w.locks = append(w.locks, l)
	w.mu.Unlock()
	go func() {
		<-l.Lost()
		var e *locksidecar.Error
		_ = errors.As(l.Err(), &e)
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case e.Reason != "disconnected":
			w.events <- members{"event": "lost", "key": l.Key(), "token": l.Token(), "reason": e.Reason}
		case !w.ended:
			w.ended = true
			w.events <- members{"event": "end"}
		}
	}()
}

func (p *player) acquire(ctx context.Context, who *party, key string, a arguments) (any, error) {
	granting := make(chan *locksidecar.Lock, 1)
	stop := locksidecar.OnStop(func(s locksidecar.Stopping) {
		go func() { // the news may come before the grant
			l := <-granting
			granting <- l
			who.events <- members{"event": "stop", "key": l.Key(), "token": l.Token(), "reason": orNil(s.Reason)}
		}()
	})
	lock, err := who.client.Acquire(ctx, key, append(optionsOf(a), stop)...)
	var skipped *locksidecar.Error
	switch {
	case errors.As(err, &skipped) && errors.Is(err, locksidecar.ErrSkipped):
		return members{"skipped": true, "key": skipped.Key, "result": skipped.Result}, nil
	case err != nil:
		return nil, err
	}
	granting <- lock
	who.follow(lock)
	return granted(lock), nil
}

func (p *player) acquireMany(ctx context.Context, who *party, a arguments) (any, error) {
	var keys []string
	for _, key := range a["keys"].([]any) {
		keys = append(keys, key.(string))
	}
	locks, err := who.client.AcquireMany(ctx, keys, optionsOf(a)...)
	if err != nil {
		return nil, err
	}
	results := make([]any, len(locks))
	for i, l := range locks {
		who.follow(l)
		results[i] = granted(l)
	}
	return members{"granted": true, "locks": results}, nil
}

// enter enters a Do, in a goroutine of its own, because the block ends in another step.
func (p *player) enter(who *party, key string, a arguments) (any, error) {
	b := &block{leave: make(chan error, 1), left: make(chan error, 1)}
	p.blocks[a.text("as")] = b
	entered := make(chan *locksidecar.Lock, 1)
	go func() {
		b.left <- who.client.Do(p.ctx, key, func(_ context.Context, l *locksidecar.Lock) error {
			entered <- l
			select {
			case err := <-b.leave:
				return err
			case <-p.ctx.Done():
				return p.ctx.Err()
			}
		}, optionsOf(a)...)
	}()
	select {
	case l := <-entered:
		who.follow(l)
		return granted(l), nil
	case err := <-b.left:
		return nil, err
	}
}

var errOfBlock = errors.New("of the block")

func (p *player) leave(a arguments) (any, error) {
	b := p.blocks[a.text("block")]
	var mine error
	if a["raise"] == true {
		mine = errOfBlock
	}
	b.leave <- mine
	switch err := <-b.left; {
	case err == nil:
		return members{"left": true}, nil
	case errors.Is(err, errOfBlock):
		return members{"raised": true}, nil
	default:
		return nil, err
	}
}

// held is the lock of a grant, the last entry first.
func (w *party) held(key string, token int64) *locksidecar.Lock {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range slices.Backward(w.locks) {
		if _, released := l.Released(); l.Key() == key && l.Token() == token && !released {
			return l
		}
	}
	return nil
}

func (p *player) release(ctx context.Context, who *party, key string, token int64, a arguments) (any, error) {
	var opts []locksidecar.ReleaseOption
	if a.has("result") {
		opts = append(opts, locksidecar.WithResult(a["result"]))
	}
	if a.has("outcome") {
		opts = append(opts, locksidecar.WithOutcome(locksidecar.Outcome(a.text("outcome"))))
	}
	if a.has("reentry") {
		opts = append(opts, locksidecar.WithReentry(int(a.number("reentry"))))
	}
	var done locksidecar.Released
	if l := who.held(key, token); l != nil {
		if err := l.Release(opts...); err != nil {
			return nil, err
		}
		done, _ = l.Released()
	} else {
		answer, err := who.client.Release(ctx, key, token, opts...)
		if err != nil {
			return nil, err
		}
		done = *answer
	}
	return members{"key": key, "released": done.Free, "reentry": done.Reentry}, nil
}

func (p *player) amend(ctx context.Context, verb string, who *party, key string, token int64, a arguments) (*locksidecar.Status, error) {
	l := who.held(key, token)
	switch {
	case verb == "downgrade":
		return l.Downgrade(ctx)
	case verb == "extend" && l != nil:
		return l.Extend(ctx, a.ms("ttl_ms"))
	case verb == "extend":
		return who.client.Extend(ctx, key, token, a.ms("ttl_ms"))
	case a.has("data") && l != nil:
		return l.Update(ctx, a["data"])
	case a.has("data"):
		return who.client.Update(ctx, key, token, a["data"])
	case l != nil:
		return l.Check(ctx)
	}
	return who.client.Check(ctx, key, token)
}

func (p *player) list(ctx context.Context, c *locksidecar.Client, a arguments) (any, error) {
	if limit, given := a["limit"]; given && limit == 0.0 {
		// The zero value of a Query is the default. So this wrong call cannot be made with this client.
		return members{"error": "invalid_request", "detail": "limit: it is 0"}, nil
	}
	keys, locks := []any{}, []any{}
	query := locksidecar.Query{Scope: locksidecar.Scope(a.text("scope")), Prefix: a.text("prefix"), Type: a.text("type"), PageSize: int(a.number("limit"))}
	for info, err := range c.Locks(ctx, query) {
		if err != nil {
			return nil, err
		}
		keys, locks = append(keys, info.Key), append(locks, shown(info))
	}
	return members{"keys": keys, "locks": locks}, nil
}

// watch returns when the key is watched: the state has come.
func (p *player) watch(a arguments) (any, error) {
	events := make(chan members, 1000)
	p.watches[a.text("as")] = events
	began := make(chan error, 1)
	go func() {
		defer close(events)
		for e, err := range p.nobody.client.Events(p.ctx, a.text("key")) {
			select {
			case began <- err:
			default:
			}
			if err != nil {
				return
			}
			events <- happened(e)
		}
	}()
	if err := <-began; err != nil {
		return nil, err
	}
	return members{"watching": true}, nil
}

func (p *player) next(ctx context.Context, of string) (any, error) {
	events, isWatch := p.watches[of]
	if !isWatch {
		events = p.parties[of].events
	}
	select {
	case e, open := <-events:
		if !open {
			return members{"event": "end"}, nil
		}
		return e, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no event within %s", answerTime)
	}
}

func (p *player) finish(name string, cancel bool) (any, error) {
	s := p.started[name]
	delete(p.started, name)
	if cancel {
		s.cancel()
		<-s.done // its error is that of the context
		return members{}, nil
	}
	select {
	case <-s.done:
		return s.result, s.err
	case <-time.After(answerTime):
		return nil, fmt.Errorf("%s has no answer after %s", name, answerTime)
	}
}

// The client's results and errors in the words of the contract.

func granted(l *locksidecar.Lock) members {
	return members{
		"granted": true, "key": l.Key(), "token": l.Token(), "session": orNil(l.Session()), "bind": l.Bind(), "reentry": l.Reentry(),
		"expires_in_ms": l.ExpiresIn().Milliseconds(), "waited_ms": l.Waited().Milliseconds(), "mode": l.Mode(), "limit": limitOf(l.Limit()), "slot": slotOf(l.Slot()),
	}
}

func checked(s *locksidecar.Status) members {
	return members{
		"held": true, "key": s.Key, "token": s.Token, "reentry": s.Reentry, "expires_in_ms": s.ExpiresIn.Milliseconds(),
		"mode": s.Mode, "limit": limitOf(s.Limit), "slot": slotOf(s.Slot), "stopping": stoppingOf(s.Stopping),
	}
}

func orNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func limitOf(n int) any {
	if n == 0 {
		return nil
	}
	return n
}

func slotOf(n int) any {
	if n < 0 {
		return nil
	}
	return n
}

func stoppingOf(s *locksidecar.Stopping) any {
	if s == nil {
		return nil
	}
	return members{"reason": orNil(s.Reason), "requested_at": s.RequestedAt}
}

func jsonOf(text json.RawMessage) any {
	if len(text) == 0 {
		return nil
	}
	return text
}

func holderOf(h *locksidecar.Holder) any {
	if h == nil {
		return nil
	}
	return members{
		"instance": h.Instance, "pod": h.Pod, "session": orNil(h.Session), "owner": orNil(h.Owner), "acquired_at": h.AcquiredAt,
		"held_ms": h.Held.Milliseconds(), "expires_in_ms": h.ExpiresIn.Milliseconds(), "data": jsonOf(h.Data), "traceparent": orNil(h.Traceparent),
	}
}

func shown(i *locksidecar.LockInfo) members {
	state, token := "free", any(nil)
	if i.Held {
		state = "held"
	}
	if i.Token != 0 {
		token = i.Token
	}
	holders := []any{}
	for _, h := range i.Holders {
		one := holderOf(&h.Holder).(members)
		one["token"], one["slot"], one["stopping"] = h.Token, slotOf(h.Slot), stoppingOf(h.Stopping)
		holders = append(holders, one)
	}
	return members{
		"key": i.Key, "type": i.Type, "state": state, "mine": i.Mine, "token": token, "mode": orNil(string(i.Mode)), "limit": limitOf(i.Limit),
		"holders_count": i.HoldersCount, "holder": holderOf(i.Holder), "kept": i.Kept, "holders": holders, "queue_length": i.QueueLength,
		"stopping": stoppingOf(i.Stopping),
	}
}

func happened(e *locksidecar.Event) members {
	if e.Type == "state" {
		state := shown(e.Lock)
		state["event"] = "state"
		return state
	}
	m := members{"event": e.Type, "key": e.Key, "token": e.Token}
	switch e.Type {
	case "acquired":
		m["mode"], m["limit"], m["slot"], m["holder"] = orNil(string(e.Mode)), limitOf(e.Limit), slotOf(e.Slot), holderOf(e.Holder)
	case "released":
		m["outcome"], m["result"] = orNil(string(e.Outcome)), jsonOf(e.Result)
	case "stopping":
		m["reason"] = orNil(e.Stopping.Reason)
	}
	return m
}

func refused(e *locksidecar.Error) members {
	m := members{
		"error": e.Code, "detail": e.Detail, "kept": e.Kept, "holders_count": e.HoldersCount, "holder": holderOf(e.Holder),
		"mode": orNil(string(e.Mode)), "limit": limitOf(e.Limit), "queue_length": e.QueueLength, "queue_position": limitOf(e.QueuePosition), "waited_ms": e.Waited.Milliseconds(),
	}
	for name, value := range map[string]string{"key": e.Key, "reason": e.Reason} {
		if value != "" {
			m[name] = value
		}
	}
	if e.Reentry != 0 {
		m["reentry"] = e.Reentry
	}
	return m
}
