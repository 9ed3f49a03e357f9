package e2e

import (
	"strings"
	"testing"
)

// screen is what `top` shows: the last whole picture, a line each. It is empty before the first one, and after the end.
func (term *typist) screen() []string {
	const top, end, other, former = "\x1b[H", "\x1b[J", "\x1b[?1049h", "\x1b[?1049l"
	written := term.stdout.String()
	if strings.LastIndex(written, other) < strings.LastIndex(written, former) {
		return nil
	}
	pictures := strings.Split(written, top)
	for i := len(pictures) - 1; i > 0; i-- {
		if picture, _, whole := strings.Cut(pictures[i], end); whole {
			return strings.Split(strings.NewReplacer("\x1b[K", "", "\x1b[7m", "> ", "\x1b[m", "").Replace(picture), "\r\n")
		}
	}
	return nil
}

// shows waits until the screen has these texts.
func (term *typist) shows(texts ...string) {
	term.t.Helper()
	eventually(term.t, "the screen to show "+strings.Join(texts, ", "), func() bool {
		shown := strings.Join(term.screen(), "\n")
		for _, text := range texts {
			if !strings.Contains(shown, text) {
				return false
			}
		}
		return true
	})
}

// TestTopKeys: on a terminal, keys sort, filter, choose, and ask a holder to stop after a question. At the end the terminal is as before.
func TestTopKeys(t *testing.T) {
	t.Parallel()
	s := start(t, options{"POD": "web-0"})
	session := openSession(t, s.socket, `{"name":"worker"}`)
	app := dial(t, s.socket)
	app.acquire("job:1", "", session.joins())
	app.acquire("job:2", "", session.joins())
	app.acquire("other:1", `{"bind":"ttl","ttl_ms":3600000}`)
	term := onTerminal(t, s, `
stty rows 10 cols 100
before=$(stty -g)
$TOP --sort key --interval 100ms
echo code $?
[ "$(stty -g)" = "$before" ] && echo as before`)
	term.shows("3 held, 3 shown", "order: key", "> job:1", "q: end")
	term.keys("j")
	term.shows("> job:2")
	term.keys("\x1b[B")
	term.shows("> other:1")
	term.keys("r")
	term.shows("order: key, reversed", "> other:1")
	term.keys("ss") // age follows holder, and waiters age
	term.shows("order: age, reversed")
	term.keys("/JOB:2")
	term.shows("filter: JOB:2_", "3 held, 1 shown", "> job:2")
	term.keys("\r")
	term.shows("filter: JOB:2   (Esc ends it)")
	term.keys("x")
	term.shows("Ask web-0/worker to stop, and to release job:2? y: yes")
	term.keys("n")
	term.shows("not asked")
	term.keys("x")
	term.shows("Ask web-0/worker")
	term.keys("y")
	if stop := session.want("stop"); stop.data["key"] != "job:2" {
		t.Errorf("%s", stop.raw)
	}
	term.shows("asked the holder of job:2 to stop", "no reason given")
	term.keys("\x1b?")
	term.shows("Any key leads back")
	term.keys(" ")
	term.shows("3 held, 3 shown")
	term.keys("q")
	term.says("code 0")
	term.says("as before")
	term.want(0)
}

// TestTopIsStopped: Ctrl-Z gives the terminal to the shell, fg takes it back, and Ctrl-C ends top with 0.
func TestTopIsStopped(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	dial(t, s.socket).acquire("job:1", `{"bind":"ttl","ttl_ms":3600000}`)
	term := onTerminal(t, s, `
before=$(stty -g)
$TOP --interval 100ms
[ "$(stty -g)" = "$before" ] && echo stopped
fg
echo code $?
[ "$(stty -g)" = "$before" ] && echo as before`)
	term.shows("job:1")
	term.keys(ctrlZ)
	term.says("stopped\r\n")
	eventually(t, "top to come back", func() bool { return term.screen() != nil })
	term.keys("s")
	term.shows("order: waiters")
	term.keys(ctrlC)
	term.says("code 0")
	term.says("as before")
	term.want(0)
}

// TestTopAsksOnlyWhomItShowed: if the holder has changed since the question, nobody is asked.
func TestTopAsksOnlyWhomItShowed(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	first := dial(t, s.socket)
	token := first.acquire("job:1", "")
	term := onTerminal(t, s, `$TOP --interval 1h`)
	term.shows("> job:1")
	term.keys("x")
	term.shows("to release job:1?")
	first.release("job:1", token)
	session := openSession(t, s.socket, "")
	dial(t, s.socket).acquire("job:1", "", session.joins())
	term.keys("y")
	term.shows("not asked: job:1 has another holder now, or none")
	if lock := first.call("GET", lockPath("job:1"), "").want(200, ""); lock.json["stopping"] != nil {
		t.Errorf("the next holder was asked: %s", lock.body)
	}
	term.keys("q")
	term.want(0)
}
