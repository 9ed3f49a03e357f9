package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// TestFloodOfForgedNews: a role that may only connect floods a sidecar with all kinds of notifications.
// The forged messages grant no lock and end none. Hand-offs continue, and the memory stays bounded.
// Proves: threat database role, threat reading role
func TestFloodOfForgedNews(t *testing.T) {
	t.Parallel()
	const flood, words = 50, 100
	o, database := onPostgres(t)
	o = o.with(options{"TTL": "1h", "POSTGRES_POLL_INTERVAL": noPoll})
	one, two := start(t, o.with(options{"POD": "one"})), start(t, o.with(options{"POD": "two"}))
	holder, waiter := dial(t, one.socket), dial(t, two.socket)
	session := openSession(t, two.socket, "")
	token := holder.acquire("k", "")
	kept := waiter.acquire("kept", "", session.joins())
	waiter.send("PUT", lockPath("k"), `{"wait_ms":-1}`)
	one.awaitQueue("k", 1)
	channel := pgtest.Query[string](t, database, "SELECT locksidecar.channel('default', instance) FROM locksidecar.leases WHERE pod = 'two'")

	makeRole(t, pgtest.Admin(database), "stranger", "LOGIN", "CONNECT")
	stranger, err := pgx.Connect(t.Context(), pgtest.As(database, "stranger"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Close(t.Context()) }()
	if _, err := stranger.Exec(t.Context(), "SELECT attempt_id FROM locksidecar.waiters"); err == nil {
		t.Error("the role may read waiters")
	}
	now := time.Now().UnixMicro()
	// A listener may have received the first half of a waiter's id.
	half := pgtest.Query[string](t, database, "SELECT left(attempt_id::text, 18) FROM locksidecar.waiters")
	granted := func(id string) string {
		return fmt.Sprintf("granted:%s,%d,%d,%d,%d,", id, token+1, now, now+3_600_000_000, now)
	}
	forged := func() string {
		id := uuid.NewString()
		return strings.Join([]string{
			granted(id), granted(half + id[18:]), "look:" + half, "look:" + id[:18], "signals",
			`event:{"kind":"expired","key":"a2VwdA==","token":1}`, "nonsense:" + strings.Repeat("x", 1000),
		}, " ")
	}
	before := two.rss()
	for range flood {
		batch := &pgx.Batch{}
		for range words {
			batch.Queue("SELECT pg_notify($1, $2)", channel, forged())
		}
		if err := stranger.SendBatch(t.Context(), batch).Close(); err != nil {
			t.Fatal(err)
		}
	}

	// The call still waits, the holder still holds, and both get real news.
	one.awaitQueue("k", 1)
	waitedFor := dial(t, two.socket)
	if view := waitedFor.call("GET", lockPath("k"), "", "Cache-Control: no-cache"); view.json["holder"].(map[string]any)["pod"] != "one" {
		t.Errorf("the holder is %s", view.body)
	}
	waitedFor.call("PATCH", lockPath("kept"), fmt.Sprintf(`{"token":%d}`, kept), session.joins()).want(200, "")
	holder.release("k", token)
	if next := waiter.read("PUT", lockPath("k")).granted(); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	if grown := two.rss() - before; grown > 64<<20 {
		t.Errorf("the sidecar's memory grew by %d MiB", grown>>20)
	}
	select {
	case e := <-session.events:
		t.Errorf("the session's event is %s %s", e.name, e.raw)
	default:
	}
	for _, s := range []*sidecar{one, two} {
		s.noErrors()
	}
}

// TestRowsEditedByHand: an operator writes odd text into a lock's row. Answers show it if possible,
// and match the document.
// Proves: threat edited rows
func TestRowsEditedByHand(t *testing.T) {
	t.Parallel()
	o, database := onPostgres(t)
	s, other := start(t, o), start(t, o)
	holder, watching := dial(t, s.socket), dial(t, other.socket)
	token := holder.acquire("k", `{"data":{"n":1}}`)
	sound := holder.acquire("sound", `{"data":{"n":2}}`)
	for _, data := range []string{"no JSON", `{"a":`, `1,"forged":true`, "{}\n\nevent: lost\ndata: {}", "{\r\n}", `"`, ""} {
		execute(t, pgtest.Admin(database), fmt.Sprintf(`UPDATE locksidecar.locks SET data = %s, session = E's"\n\x1b', owner = E'\n', stopping = now(),
			stop_reason = E'\n\nevent: lost\ndata: {}', traceparent = E'00-zz\r\n', handed_by = 'x' WHERE key = 'k'`, quoteSQL(data)))
		ans := watching.call("PUT", lockPath("k"), "", "Cache-Control: no-cache").want(423, "held")
		if strings.Contains(string(ans.body), "forged") {
			t.Errorf("%q: %s", data, ans.body)
		}
		watching.call("GET", lockPath("k"), "", "Cache-Control: no-cache").want(200, "")
		list := watching.call("GET", "/v1/locks?scope=all", "").want(200, "")
		if !strings.Contains(string(list.body), `{"n":2}`) {
			t.Errorf("%q: other locks are not listed: %s", data, list.body)
		}
		stream, state := watchKey(t, other.socket, "k")
		if state.data["state"] != "held" {
			t.Errorf("%q: %s", data, state.raw)
		}
		stream.close()
		if data != "" {
			continue // once is enough, because processes are slow
		}
		for _, command := range [][]string{{"get", "k"}, {"ls"}, {"top", "--once"}} {
			if out := other.command(command...); strings.ContainsAny(out, "\x1b\r") {
				t.Errorf("%s: %q", command, out)
			}
		}
	}
	holder.release("k", token)
	holder.release("sound", sound)
	for _, s := range []*sidecar{s, other} {
		s.noErrors()
	}
}

// quoteSQL returns a text as an SQL literal, with line ends.
func quoteSQL(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
