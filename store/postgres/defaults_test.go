package postgres_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/postgres"
)

// strangeDefaults are settings with which a role, a database or a server can change the text of answers, the
// meaning of statements, or how long they may take. Each has a value that PostgreSQL does not have by itself.
var strangeDefaults = []string{
	// the text of values and of statements
	"DateStyle = 'German, DMY'", "DateStyle = 'SQL, MDY'", "DateStyle = 'Postgres, DMY'", "IntervalStyle = sql_standard", "IntervalStyle = iso_8601",
	"TimeZone = 'Asia/Kathmandu'", "extra_float_digits = -15", "bytea_output = escape", "standard_conforming_strings = off",
	"backslash_quote = off", "array_nulls = off", "transform_null_equals = on", "quote_all_identifiers = on",
	"xmlbinary = hex", "xmloption = document", "client_encoding = LATIN1", "client_encoding = SQL_ASCII",
	"lc_messages = 'C.utf8'", "lc_monetary = 'C.utf8'", "lc_numeric = 'C.utf8'", "lc_time = 'C.utf8'",
	// the names in them
	"search_path = ''", "search_path = strange, pg_catalog", "search_path = better", "row_security = off",
	// transactions
	"default_transaction_isolation = serializable", "default_transaction_isolation = 'repeatable read'",
	"default_transaction_read_only = on", "default_transaction_deferrable = on", "synchronous_commit = off",
	"session_replication_role = replica",
	// times
	"statement_timeout = 20000", "lock_timeout = 1", "idle_in_transaction_session_timeout = 1", "idle_session_timeout = 3600000",
	// functions and messages
	"plpgsql.extra_errors = 'all'", "plpgsql.variable_conflict = use_column", "check_function_bodies = off",
	"client_min_messages = debug5", "client_min_messages = error",
}

// strangePlans change only how PostgreSQL finds what is asked. All at once they make each statement several times slower.
var strangePlans = []string{
	"plan_cache_mode = force_custom_plan", "jit = on", "force_parallel_mode = on", "geqo_threshold = 2",
	"join_collapse_limit = 1", "from_collapse_limit = 1", "constraint_exclusion = on", "enable_indexscan = off",
	"enable_indexonlyscan = off", "enable_bitmapscan = off", "enable_nestloop = off", "enable_tidscan = off", "enable_sort = off",
	"work_mem = 64", "cursor_tuple_fraction = 1",
}

// setDefaults gives roles these settings in a database, until reset.
func setDefaults(t *testing.T, url string, settings []string, roles ...string) (reset func()) {
	t.Helper()
	admin, database := connect(t, url), configOf(t, url).Database
	for _, role := range roles {
		for _, s := range settings {
			exec(t, admin, "ALTER ROLE "+role+" IN DATABASE "+database+" SET "+s)
		}
	}
	return func() {
		for _, role := range roles {
			exec(t, admin, "ALTER ROLE "+role+" IN DATABASE "+database+" RESET ALL")
		}
	}
}

// makeStrange makes functions that a search_path can put before PostgreSQL's: those of the schema "strange" if it is
// named before pg_catalog, and those of "better" in any place, because they fit better. Anybody can make the latter in
// the schema public of PostgreSQL 14, for which each session looks by default.
func makeStrange(t *testing.T, url string) {
	t.Helper()
	admin := connect(t, url)
	exec(t, admin, "CREATE SCHEMA strange; CREATE SCHEMA better; GRANT USAGE ON SCHEMA strange, better TO PUBLIC")
	for _, f := range []string{
		"strange.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''1999-01-01''::timestamptz'",
		"strange.gen_random_uuid() RETURNS uuid LANGUAGE sql AS 'SELECT ''00000000-0000-0000-0000-000000000001''::uuid'",
		"better.unnest(uuid[]) RETURNS SETOF uuid LANGUAGE sql AS 'SELECT pg_catalog.gen_random_uuid()'",
		"better.array_position(uuid[], uuid) RETURNS integer LANGUAGE sql AS 'SELECT 7'",
		"better.count(uuid) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'",
	} {
		exec(t, admin, "CREATE FUNCTION "+f)
	}
}

// Trap: a DBA's defaults. None of these settings changes what the store does or shows. With -combinations each is tested alone, otherwise a few
// together.
// Proves: trap defaults
func TestStrangeDefaults(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	makeStrange(t, url)
	few := 6
	if *combinations {
		few = 1
	}
	for settings := range slices.Chunk(slices.Concat(strangeDefaults, strangePlans), few) {
		t.Run(settings[0], func(t *testing.T) {
			reset := setDefaults(t, url, settings, pgroles.Sidecar, pgroles.Reader)
			defer reset()
			useEverything(t, url)
		})
	}
}

// Trap: idle_in_transaction_session_timeout is less than a round trip. No connection is in a transaction while the server
// waits for the next message, not even after an error: the reader may not ask for the server's name.
// Proves: trap defaults
func TestIdleTimeoutBelowARoundTrip(t *testing.T) {
	t.Parallel()
	url := cluster.NewDatabase(t)
	roles := []string{pgroles.Sidecar, pgroles.Reader}
	setDefaults(t, url, []string{"idle_in_transaction_session_timeout = 1"}, roles...)
	for _, role := range roles {
		proxy := pgproxy.Start(t, pgtest.As(url, role))
		proxy.Slow(20 * time.Millisecond)
		startWith(t, postgres.Config{URL: proxy.URL()}, store.Identity{Namespace: "n", Instance: role, Pod: "p"})
	}
}

// The same settings, all at once, do not disturb a migration, with and without a pooler.
// Proves: trap defaults
func TestMigrationsWithStrangeDefaults(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprintf("pooled %v", pooled), func(t *testing.T) {
			t.Parallel()
			url := refusing(t, cluster, nil)
			makeStrange(t, url)
			setDefaults(t, url, strangeDefaults, configOf(t, url).User)
			through := url
			if pooled {
				through = cluster.Pooler(t, url, 2)
			}
			migrate(t, through)
			// It continues where it was interrupted, and applies further migrations.
			exec(t, connect(t, url), "UPDATE locksidecar.meta SET schema_version = 0")
			migrate(t, through)
			if err := postgres.MigrateFurther(t.Context(), t, through, "CREATE TABLE locksidecar.further (at interval DEFAULT '-1 2:03');",
				"CREATE OR REPLACE FUNCTION locksidecar.further() RETURNS text LANGUAGE sql AS 'SELECT clock_timestamp()::text'", func(error) {}); err != nil {
				t.Fatal(err)
			}
			if source := sourceOf(t, url); source != "timeline" {
				t.Errorf("the history source is %s", source)
			}
		})
	}
}

// useEverything uses most statements of the store, with texts that a setting could change.
func useEverything(t *testing.T, url string) {
	t.Helper()
	const key, reason, owner = `ключ:"\'{NULL}é`, `\x00 NULL €`, `\`
	data, result, traceparent := []byte(`{"a":"\\'€ключ"}`), []byte(`"\\é"`), "NULL"
	namespace := uuid.NewString()
	open := func(instance string) *listener {
		l := &listener{news: make(chan store.News, 10_000)}
		l.Store = backend{tb: t, url: url, listen: postgres.ListenAlways, failover: store.FailoverQuick}.open(store.Identity{Namespace: namespace, Instance: instance, Pod: "NULL"})
		start(t, l.Store, func(n store.News) { l.news <- n })
		l.lease = openLease(t, l, time.Hour)
		return l
	}
	first, second := open("i"), open("j")
	defer first.Stop()
	defer second.Stop()
	ask := func(l *listener, key string, change func(*store.Ask)) store.Ask {
		a := askFor(key, l.lease)
		a.Session, a.Owner, a.Data, a.Traceparent = "NULL", owner, data, traceparent
		change(&a)
		return a
	}
	plain := func(*store.Ask) {}
	share := func(a *store.Ask) { a.Shared, a.Limit = true, 3 }
	is := func(what string, l store.Lock) {
		t.Helper()
		h := l.Holder
		if len(l.Holders) > 0 {
			h = l.Holders[0].Holder
		}
		if !l.Held || h.Owner != owner || !bytes.Equal(h.Data, data) || h.Session != "NULL" || h.Traceparent != traceparent ||
			h.HeldFor > patience || h.ExpiresIn > time.Hour || h.ExpiresIn < time.Hour-patience || time.Since(h.AcquiredAt) > patience {
			t.Errorf("%s: %+v", what, l)
		}
	}
	if err := second.Watch(t.Context(), []string{key}, second.lease); err != nil {
		t.Fatal(err)
	}
	held := ask(first, key, plain)
	granted := want(t, acquire(t, first, held), store.Granted)
	if granted.ExpiresIn > time.Hour || granted.ExpiresIn < time.Hour-patience || time.Since(granted.AcquiredAt) > patience {
		t.Errorf("granted: %+v", granted)
	}
	second.await(t, "the event of a watched key", func(n store.News) bool { return n.Event != nil && n.Event.Key == key && n.Event.Token == granted.Token })
	// Sidecars with other settings use the same key.
	if stored := pgtest.Query[string](t, url, "SELECT key || owner || data FROM locksidecar.locks WHERE namespace = $1", namespace); stored != key+owner+string(data) {
		t.Errorf("stored as %s", stored)
	}
	many := []store.Ask{ask(first, "a", plain), ask(first, "b", plain), ask(first, "ttl", func(a *store.Ask) { a.TTL = time.Hour })}
	tokens := make([]int64, len(many))
	for _, asks := range [][]store.Ask{many[:2], many} { // under one lease; under several, of which two are found again
		answers, err := first.Acquire(t.Context(), asks)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range answers {
			tokens[i] = want(t, a, store.Granted).Token
		}
	}
	readers := ask(first, "shared", share)
	shared := want(t, acquire(t, first, readers), store.Granted)
	want(t, acquire(t, first, ask(first, "shared", share)), store.Granted)
	want(t, acquire(t, first, ask(first, "kept", func(a *store.Ask) { a.MinHold = time.Hour })), store.Granted)
	is("held", want(t, acquire(t, second, ask(second, key, plain)), store.Held).Lock)

	waits := []store.Ask{ask(second, "a", plain), ask(second, "b", plain), ask(second, key, plain), ask(second, "shared", plain)}
	answers, err := second.Enqueue(t.Context(), waits)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		is("queued for "+waits[i].Key, want(t, a, store.Queued).Lock)
	}
	what := reason
	if _, err := second.Signal(t.Context(), []store.Signal{{Kind: store.Stop, Key: key, Reason: &what}}); err != nil {
		t.Error(err)
	}
	if signals, err := first.Signals(t.Context(), []store.LeaseID{first.lease}); err != nil || len(signals) != 1 || *signals[0].Reason != reason {
		t.Errorf("signals: %+v, %v", signals, err)
	}
	locks, err := first.Get(t.Context(), []string{key, "shared", "ttl"})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range locks {
		is("got", l)
	}
	if s := locks[0].Stopping; s == nil || *s.Reason != reason || time.Since(s.At) > patience {
		t.Errorf("stopping: %+v", s)
	}
	if w, err := first.Waiting(t.Context(), store.WaitQuery{Key: key, Limit: 10}); err != nil || len(w) != 1 || w[0].Owner != owner || w[0].WaitingFor > patience {
		t.Errorf("waiting: %+v, %v", w, err)
	}
	reader := startWith(t, postgres.Config{URL: pgtest.As(url, pgroles.Reader)}, store.Identity{Namespace: namespace, Instance: "r", Pod: "p"})
	defer reader.Stop()
	for name, s := range map[string]*postgres.Store{"a sidecar": first.Store, "a reader": reader} {
		if l, err := s.List(t.Context(), store.Query{Limit: 10}); err != nil || len(l) != 6 || l[5].Key != key || l[5].Holder.Owner != owner {
			t.Errorf("%s lists %+v, %v", name, l, err)
		}
		if stats, err := s.Stats(t.Context()); err != nil || len(stats.Types) == 0 {
			t.Errorf("%s counts %+v, %v", name, stats, err)
		}
		if next, err := s.NextToken(t.Context()); name == "a sidecar" && (err != nil || next <= shared.Token) {
			t.Errorf("the next token is %d after %d: %v", next, shared.Token, err)
		}
	}
	if v, err := first.Amend(t.Context(), []store.Change{{Key: "ttl", Token: tokens[2], TTL: 2 * time.Hour, SetData: true, Data: result}}); err != nil ||
		v[0].Lock.Holder.ExpiresIn < 2*time.Hour-patience || !bytes.Equal(v[0].Lock.Holder.Data, result) {
		t.Errorf("amended: %+v, %v", v, err)
	}
	if r, err := first.Renew(t.Context(), []store.LeaseID{first.lease, uuid.New()}); err != nil || len(r.Renewed) != 1 || !r.Signals {
		t.Errorf("renewed: %+v, %v", r, err)
	}
	if e, err := first.Elect(t.Context(), time.Minute); err != nil || !e.Elected {
		t.Errorf("elected: %+v, %v", e, err)
	}
	to := openLease(t, first, time.Hour)
	moves := []store.Move{{Attempt: many[0].Attempt, Token: tokens[0]}, {Attempt: readers.Attempt, Token: shared.Token}, {Attempt: held.Attempt, Token: granted.Token}}
	if states, err := first.Move(t.Context(), first.lease, to, moves); err != nil || states[0] != store.Holds || states[1] != store.Holds || states[2] != store.Holds {
		t.Errorf("moved: %v, %v", states, err)
	}
	if found, err := first.HeldUnder(t.Context(), []string{key, "shared", "b"}); err != nil || len(found.Grants) != 4 {
		t.Errorf("held: %+v, %v", found, err)
	}
	if err := first.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if a, err := second.Cancel(t.Context(), []store.Attempt{waits[0].Attempt, waits[1].Attempt}); err != nil || a[0].Outcome != store.Gone || a[1].Outcome != store.Gone {
		t.Errorf("cancelled: %+v, %v", a, err)
	}
	claims := []store.Claim{{Key: "a", Token: tokens[0], Lease: to}, {Key: "b", Token: tokens[1], Lease: first.lease}, {Key: key, Token: granted.Token, Lease: to}}
	verdicts, err := first.Release(t.Context(), claims)
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range verdicts {
		if v.Status != store.Holds {
			t.Errorf("released %s: %+v", claims[i].Key, v)
		}
	}
	if told := second.awaitGrant(t, waits[2]); told.ExpiresIn > time.Hour || told.ExpiresIn < time.Hour-patience || told.Token <= granted.Token {
		t.Errorf("handed over: %+v", told)
	}
	is("the waiter's", func() store.Lock { l, _ := second.Get(t.Context(), []string{key}); return l[0] }())
	if err := withdraw(t.Context(), second, waits[2].Attempt); err != nil {
		t.Error(err)
	}
	if err := first.ReapInstance(t.Context(), "i"); err != nil {
		t.Error(err)
	}
	want(t, check(t, second, waits[3]), store.Granted)
	if got := postgres.Setting(t.Context(), t, first.Store, "idle_session_timeout"); got != "0" {
		t.Errorf("idle_session_timeout %s", got)
	}
}
