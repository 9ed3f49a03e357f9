package proxy

import (
	"context"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// defaultStatLines is how many lines each list of GET /v1/stats has, and one for the
// others.
const defaultStatLines = 20

// statsCache is what is known of the whole database. To count it may mean to read every
// lock that there is, so whoever asks, and how often: it is counted once at a time,
// and a count is told for a while.
type statsCache struct {
	locks Locks
	fresh time.Duration // how long a count is told at least
	// turn is held by who counts, and by who looks whether somebody has counted. It
	// guards what stands below.
	turn chan struct{}

	until time.Time // how long it is told
	stats store.Stats
	err   error
}

func newStatsCache(locks Locks, fresh time.Duration) *statsCache {
	return &statsCache{locks: locks, fresh: fresh, turn: make(chan struct{}, 1)}
}

// censusRest is how often as long as the counting took a count is told: at most a tenth
// of the time is spent on it, however many ask.
const statsRest = 9

// count returns the last count, if it is fresh, or counts. Failures are told again as
// well: a store that is in trouble is not asked more often. A count that has begun is
// finished, also when who asked has gone: else whoever asks and hangs up, again and again,
// would keep the database busy, and cost a connection each time.
func (c *statsCache) count(ctx context.Context) (store.Stats, error) {
	select {
	case c.turn <- struct{}{}:
	default:
		select {
		case c.turn <- struct{}{}:
		case <-ctx.Done():
			return store.Stats{}, lease.ErrCallerLeft
		}
	}
	defer func() { <-c.turn }()
	began := time.Now()
	if began.Before(c.until) {
		return c.stats, c.err
	}
	_ = ctx.Done() // the connection is watched: it may have locks
	c.stats, c.err = c.locks.Stats(context.WithoutCancel(ctx))
	ended := time.Now()
	c.until = ended.Add(max(c.fresh, statsRest*ended.Sub(began)))
	return c.stats, c.err
}

// statsRequest is what GET /v1/stats asks for.
type statsRequest struct {
	own   bool // only the sidecar's namespace
	limit int
}

// stats is GET /v1/stats.
func (k *call) stats() *problem {
	if p := k.only(methodsGet); p != nil {
		return p
	}
	r, p := parseStats(k.query)
	if p != nil {
		return p
	}
	if p := parseBody(k.ctx.Request.Body(), nil); p != nil {
		return p
	}
	counted, err := k.srv.statsCache.count(k.c.watch.begin(true))
	k.c.watch.end()
	if err != nil {
		return k.failed(err)
	}
	return k.answerLong(k.srv.appendStats(k.buffer(), counted, r))
}

func parseStats(query []byte) (r statsRequest, p *problem) {
	params := [...]param{{name: "scope"}, {name: "limit"}}
	if p = parseQuery(query, params[:]); p != nil {
		return r, p
	}
	scope, limit := &params[0], &params[1]
	switch {
	case !scope.set || string(scope.value) == "database":
	case string(scope.value) == "namespace":
		r.own = true
	default:
		return r, invalid("query parameter scope is %.40q; it must be database or namespace", scope.value)
	}
	r.limit = defaultStatLines
	if limit.set {
		n, p := limit.integer(1, maxLimit)
		if p != nil {
			return r, p
		}
		r.limit = int(n)
	}
	return r, nil
}

func (s *Server) appendStats(b []byte, counted store.Stats, r statsRequest) []byte {
	types, pods := newStatsList(counted.Types, r, s.cfg.Namespace), newStatsList(counted.Pods, r, s.cfg.Namespace)
	b = append(b, '{')
	b = appendSums(b, &types.total, true)
	b = append(b, `,"types":`...)
	b = types.append(b, `,"type":`, true)
	b = append(b, `,"pods":`...)
	b = pods.append(b, `,"pod":`, false)
	return append(b, '}')
}

// statsList is a list of stats, cut to its limit. What is left is summed up in others.
type statsList struct {
	lines         []store.Stat
	more          bool // there are others
	total, others store.Stat
}

// newTally counts. What the store has summed up already (see [store.Stats]) stands last,
// and nobody knows of which namespace it is.
func newStatsList(all []store.Stat, r statsRequest, namespace string) statsList {
	t := statsList{others: store.Stat{Name: store.Others}}
	for i := range all {
		line := &all[i]
		if r.own && line.Namespace != namespace {
			continue
		}
		t.total = t.total.Plus(*line)
		if len(t.lines) == r.limit {
			t.others = t.others.Plus(*line)
			t.more = true
			continue
		}
		t.lines = append(t.lines, *line)
	}
	return t
}

// append appends the list. name is the member that says what each line is about.
func (t *statsList) append(b []byte, name string, waiting bool) []byte {
	b = append(b, '[')
	for i := range t.lines {
		b = appendLine(b, &t.lines[i], name, waiting)
		b = append(b, ',')
	}
	if t.more {
		b = appendLine(b, &t.others, name, waiting)
		return append(b, ']')
	}
	if len(t.lines) > 0 {
		b = b[:len(b)-1] // the last comma
	}
	return append(b, ']')
}

func appendLine(b []byte, line *store.Stat, name string, waiting bool) []byte {
	b = append(b, `{"namespace":`...)
	b = appendStringOrNull(b, line.Namespace)
	b = append(b, name...)
	b = appendString(b, line.Name)
	b = append(b, ',')
	return append(appendSums(b, line, waiting), '}')
}

// appendSums appends the members. A pod has no waiters of which the store knows.
func appendSums(b []byte, line *store.Stat, waiting bool) []byte {
	b = append(b, `"held":`...)
	b = strconv.AppendInt(b, line.Held, 10)
	b = append(b, `,"expired":`...)
	b = strconv.AppendInt(b, line.Expired, 10)
	if waiting {
		b = append(b, `,"waiting":`...)
		b = strconv.AppendInt(b, line.Waiting, 10)
	}
	b = append(b, `,"average_held_ms":`...)
	b = appendMillis(b, line.Average)
	b = append(b, `,"longest_held_ms":`...)
	return appendMillis(b, line.Longest)
}
