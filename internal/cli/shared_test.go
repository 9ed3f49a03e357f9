package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// A semaphore of two: the commands take places, show them, and ask or break one holder of them.
func TestCommandsShareALock(t *testing.T) {
	in := serve(t, map[string]string{"POD": "web-0", "ALLOW_FORCE": "true"})
	var tokens []string
	for range 2 {
		out, err := in.command("acquire", "s3:in", "--ttl", "1h", "--limit", "2")
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, strings.TrimSpace(out))
	}
	if _, err := in.command("acquire", "doc", "--ttl", "1h", "--shared"); err != nil {
		t.Fatal(err)
	}
	app := sidecartest.Dial(t, in.Socket)
	if err := app.Send("PUT", "/v1/locks/s3:in", `{"mode":"shared","limit":2,"wait_ms":-1,"owner":"flow"}`); err != nil {
		t.Fatal(err)
	}
	writer := sidecartest.Dial(t, in.Socket)
	awaitQueue(t, in, "s3:in", 1)
	if err := writer.Send("PUT", "/v1/locks/doc", `{"wait_ms":-1}`); err != nil {
		t.Fatal(err)
	}
	awaitQueue(t, in, "doc", 1)
	steps := []struct {
		args []string
		code int
		says string // a regular expression
	}{
		{[]string{"acquire", "s3:in", "--ttl", "1h", "--limit", "2"}, exitcode.NoLock, `^not granted: held by pod web-0, .*; shared 2/2; waiting: 1$`},
		{[]string{"acquire", "s3:in", "--ttl", "1h", "--limit", "3"}, exitcode.Usage, `limit`},
		{[]string{"acquire", "s3:in", "--ttl", "1h"}, exitcode.NoLock, `shared 2/2`},
		{[]string{"ls"}, exitcode.OK, `(?m)^doc +shared 1 +web-0(?s:.*)^s3:in +shared 2/2 +web-0 `},
		{[]string{"top", "--sort", "key"}, exitcode.OK, `(?m)^doc +shared 1 +web-0 (?s:.*)^s3:in +shared 2/2 +web-0 `},
		{[]string{"get", "s3:in"}, exitcode.OK, `(?s)mode +shared 2/2\n.*\nTOKEN +SLOT +POD.*\n` + tokens[0] + ` +0 +web-0 .*\n` + tokens[1] + ` +1 +web-0 `},
		{[]string{"get", "free"}, exitcode.OK, `mode +-\n`},
		{[]string{"waiters", "s3:in"}, exitcode.OK, `^KEY +POSITION +MODE +POD .*\ns3:in +1 +shared of 2 +web-0 +\S+ +flow +\S+\n$`},
		{[]string{"waiters"}, exitcode.OK, `(?m)^doc +1 +exclusive +web-0 (?s:.*)^s3:in `},
		{[]string{"waiters", "--prefix", "s3"}, exitcode.OK, `^KEY.*\ns3:in.*\n$`},
		{[]string{"waiters", "--limit", "1"}, exitcode.OK, `^KEY.*\ndoc.*\n$`},
		{[]string{"waiters", "--limit", "1", "--json"}, exitcode.OK, `^\{"waiters":\[\{"key":"doc".*\}\],"next_cursor":"\S+"\}\n$`},
		{[]string{"waiters", "free", "--json"}, exitcode.OK, `^\{"waiters":\[\],"next_cursor":null\}\n$`},
		{[]string{"stop", "s3:in", "--token", tokens[1], "--reason", "a release"}, exitcode.OK, "asked"},
		{[]string{"stop", "s3:in", "--token", "1"}, exitcode.Refused, "token 1"},
		{[]string{"get", "s3:in"}, exitcode.OK, `(?m)^` + tokens[0] + ` .* -$(?s:.*)^` + tokens[1] + ` .* a release \(asked at `},
		{[]string{"release", "s3:in", "--force", "--token", tokens[0]}, exitcode.OK, "broke s3:in"},
		{[]string{"release", "s3:in", "--token", tokens[1]}, exitcode.OK, "released s3:in"},
	}
	for _, step := range steps {
		out, err := in.command(step.args...)
		if err != nil {
			out += err.Error()
		}
		if exitcode.Of(err) != step.code || !regexp.MustCompile(step.says).MatchString(out) {
			t.Errorf("%q: code %d, want %d and %s:\n%s", step.args, exitcode.Of(err), step.code, step.says, out)
		}
	}
}

func awaitQueue(t *testing.T, in served, key string, want int) {
	t.Helper()
	app := sidecartest.Dial(t, in.Socket)
	for end := time.Now().Add(patience); ; {
		var lock client.Lock
		if err := json.Unmarshal([]byte(app.Wants(200, "GET", client.LockPath(key), "")), &lock); err != nil {
			t.Fatal(err)
		}
		if lock.QueueLength == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d calls wait for %s, not %d", lock.QueueLength, key, want)
		}
	}
}

func TestGetCountsTheHoldersThatAreNotListed(t *testing.T) {
	lock := client.Lock{LockMode: client.LockMode{Mode: client.ModeShared, HoldersCount: 150}, Holders: make([]client.SharedHolder, 100)}
	var out strings.Builder
	if err := writeLock(&lock, &out); err != nil || !strings.HasSuffix(out.String(), "\n(and 50 more)\n") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// testGrant is a grant in the session sh[2].
type testGrant struct{ slot int }

func (testGrant) Key() string            { return "k" }
func (testGrant) Token() int64           { return 5 }
func (g testGrant) Slot() int            { return g.slot }
func (testGrant) Session() string        { return "sh[2]" }
func (testGrant) Mode() locksidecar.Mode { return locksidecar.ModeExclusive }

func TestChildKnowsItsSlotOnly(t *testing.T) {
	const socket, held = "/s", `LOCKSIDECAR_HELD=[{"socket":"/s","key":"outer","session":"sh[1]"}`
	inherited := []string{"A=1", held + "]", "LOCKSIDECAR_KEY=outer", "LOCKSIDECAR_TOKEN=1", "LOCKSIDECAR_SLOT=7", "LOCKSIDECAR_SLOTS=8"}
	for slot, want := range map[int]string{
		3:  "[A=1 LOCKSIDECAR_SLOTS=8 LOCKSIDECAR_KEY=k LOCKSIDECAR_TOKEN=5 LOCKSIDECAR_SLOT=3 ",
		-1: "[A=1 LOCKSIDECAR_SLOTS=8 LOCKSIDECAR_KEY=k LOCKSIDECAR_TOKEN=5 ",
	} {
		want += held + `,{"socket":"/s","key":"k","session":"sh[2]"}]]`
		if got := fmt.Sprint(childEnv(inherited, socket, testGrant{slot})); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
