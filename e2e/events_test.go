package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestEventsCommand: a line for each event of the key, from all pods, and the end by Ctrl-C with 0.
// Proves: threat control characters
func TestEventsCommand(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	here, there := start(t, o.with(options{"POD": "here"})), start(t, o.with(options{"POD": "there"}))
	follows := startCommand(t, here, "events", "job:1")
	asJSON := startCommand(t, here, "events", "job:1", "-o", "json", "--until", "stopping,expired")
	follows.says("  state     free\n")
	asJSON.says(`"event":"state"`)
	holder := dial(t, there.socket)
	token := holder.acquire("job:1", `{"owner":"o\u202e"}`)
	follows.says("acquired  ")
	holder.call("POST", lockPath("job:1")+"/stop", `{"reason":"the database\u202e goes down"}`).want(202, "")
	follows.says("stopping  ")
	holder.releaseWith("job:1", token, "&outcome=success", `{"result":{"rows":120}}`)
	follows.says("released  ")
	follows.signal(syscall.SIGINT)
	follows.want(0)
	asJSON.want(0)
	lines := strings.Split(strings.TrimSuffix(follows.stdout.String(), "\n"), "\n")
	for i, want := range []string{
		`state     free`,
		fmt.Sprintf(`acquired  token %d(, by there/\S+ \(o\\u202e\))?`, token), // the holder may be unknown
		fmt.Sprintf(`stopping  token %d, the database\\u202e goes down`, token),
		fmt.Sprintf(`released  token %d, success \{"rows":120\}`, token),
	} {
		if len(lines) != 4 || !regexp.MustCompile(`^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  `+want+`$`).MatchString(lines[i]) {
			t.Errorf("line %d is not %s:\n%s", i, want, follows.stdout)
		}
	}
	var names []string
	for line := range strings.Lines(asJSON.stdout.String()) {
		var e struct {
			Event string         `json:"event"`
			At    string         `json:"at"`
			Data  map[string]any `json:"data"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Data["key"] != "job:1" || e.At == "" {
			t.Errorf("%s: %v", line, err)
		}
		names = append(names, e.Event)
	}
	if fmt.Sprint(names) != "[state acquired stopping]" {
		t.Errorf("%s", names)
	}
}

// TestEventsOutliveARestart: the command says that the sidecar is away, and goes on with the state.
func TestEventsOutliveARestart(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := startIn(t, dir, nil)
	follows := startCommand(t, s, "events", "job:1", "--count", "1")
	follows.says("state     free")
	s.kill()
	follows.says("; trying again\n")
	s = startIn(t, dir, nil)
	eventually(t, "the state after the restart", func() bool { return strings.Count(follows.stdout.String(), "state     free") == 2 })
	dial(t, s.socket).acquire("job:1", "")
	follows.want(0)
	if n := strings.Count(follows.stderr.String(), "\n"); n != 1 || !strings.Contains(follows.stdout.String(), "acquired  token ") {
		t.Errorf("%d lines of errors:\n%s\n%s", n, follows.stderr, follows.stdout)
	}
}

// TestListWatch: a line for each change of a lock, and none for what stays; the restart of the sidecar is told.
func TestListWatch(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := startIn(t, dir, options{"POD": "web-0"})
	a := dial(t, s.socket)
	token := a.acquire("job:1", `{"data":{"x":1}}`)
	a.acquire("job:stays", "")
	watches := startCommand(t, s, "ls", "--watch", "--interval", "100ms", "--type", "job", "-o", "wide")
	watches.says("job:stays")
	second := dial(t, s.socket)
	second.send("PUT", lockPath("job:1"), `{"wait_ms":-1}`)
	row := func(text string) func() bool {
		expression := regexp.MustCompile(`(?m)^job:1 +` + text + `$`)
		return func() bool { return expression.MatchString(watches.stdout.String()) }
	}
	eventually(t, "the waiting call", row(`exclusive .* renewed +1 .*\{"x":1\}`))
	a.release("job:1", token)
	eventually(t, "the next holder", row(`exclusive .* renewed +0 .* -`))
	second.close()
	eventually(t, "the free key", row(`free( +-)+`))
	s.kill()
	watches.says("; trying again\n")
	s = startIn(t, dir, nil)
	dial(t, s.socket).acquire("job:later", "")
	watches.says("job:later")
	watches.signal(syscall.SIGINT)
	watches.want(0)
	if n := strings.Count(watches.stdout.String(), "job:stays"); n != 2 { // at first, and when it is gone
		t.Errorf("%d lines for a lock that stays:\n%s", n, watches.stdout)
	}
}

// TestListsShowAllPods: the scope of all lists is the namespace, unless another one is chosen.
func TestListsShowAllPods(t *testing.T) {
	t.Parallel()
	o, _ := onPostgres(t)
	here, there := start(t, o), start(t, o)
	dial(t, there.socket).acquire("job:1", "")
	looker := dial(t, here.socket)
	for query, held := range map[string]int{"": 1, "?scope=all": 1, "?scope=pod": 0, "?scope=session": 0} {
		if n := len(looker.call("GET", "/v1/locks"+query, "").want(200, "").json["locks"].([]any)); n != held {
			t.Errorf("%q: %d locks, want %d", query, n, held)
		}
	}
	for _, command := range []string{"ls", "top"} {
		if out := here.command(command); !strings.Contains(out, "job:1") {
			t.Errorf("%s:\n%s", command, out)
		}
		if out := here.command(command, "--scope", "pod"); strings.Contains(out, "job:1") {
			t.Errorf("%s --scope pod:\n%s", command, out)
		}
	}
}
