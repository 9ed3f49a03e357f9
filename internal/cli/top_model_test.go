package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// at is when the sidecar said something.
var at = time.Date(2026, 11, 21, 15, 4, 5, 0, time.UTC)

// topOf is a view of locks on a terminal.
func topOf(columns, lines int, locks ...lockView) *topModel {
	m := &topModel{sort: byAge}
	m.resize(columns, lines)
	m.found(topLocksOf(locks...), false, at)
	return m
}

func topLocksOf(locks ...lockView) (out []topLock) {
	for i := range locks {
		out = append(out, newTopLock(&locks[i]))
	}
	return out
}

func threeLocks() []lockView {
	owner := "flow-7"
	c := listedLock("other:c", "web-3", "s3", 30*time.Hour, 400*time.Millisecond, 1)
	c.Holder.Owner, c.Holder.Session = &owner, nil
	return []lockView{
		listedLock("job:a", "web-2", "s1", 90*time.Second, 14*time.Second, 0),
		listedLock("job:b", "web-1", "s2", 2*time.Second, 15*time.Second, 12),
		c,
	}
}

func (m *topModel) keysShown() string {
	var keys []string
	for i := range m.shown {
		keys = append(keys, m.shown[i].keyText)
	}
	return strings.Join(keys, " ")
}

// type_ presses keys as a terminal sends them.
func (m *topModel) type_(text string) (last topWish) { //nolint:revive // type is taken
	var p keyParser
	for _, k := range append(p.feed([]byte(text)), p.flush()...) {
		last = m.press(k)
	}
	return last
}

func TestTopFrame(t *testing.T) {
	m := topOf(62, 9, threeLocks()...)
	lines, header := m.frame()
	want := []string{
		"locksidecar top: this pod | 3 held, 3 shown | oldest 1d06h | 1~",
		"sorted by age",
		"KEY      HOLDER              AGE  WAITERS  EXPIRES",
		"other:c  web-3 (flow-7)    1d06h        1    400ms",
		"job:a    web-2/s1          1m30s        0    14.0s",
		"job:b    web-1/s2           2.0s       12    15.0s",
		"",
		"",
		topKeys[:61] + "~",
	}
	want[0] = cut("locksidecar top: this pod | 3 held, 3 shown | oldest 1d06h | 15:04:05", 62)
	if !slices.Equal(lines, want) || header != 2 {
		t.Errorf("header %d, got\n%s\nwant\n%s", header, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestTopSorts(t *testing.T) {
	for order, want := range map[string]string{
		byKey: "job:a job:b other:c", byHolder: "job:b job:a other:c", byAge: "other:c job:a job:b",
		byWaiters: "job:b other:c job:a", byExpiry: "other:c job:a job:b",
	} {
		m := &topModel{sort: order}
		m.found(topLocksOf(threeLocks()...), false, at)
		if got := m.keysShown(); got != want {
			t.Errorf("%s: %s, want %s", order, got, want)
		}
		m.type_("r")
		words := strings.Fields(want)
		slices.Reverse(words)
		if got := strings.Fields(m.keysShown()); !slices.Equal(got, words) {
			t.Errorf("%s reversed: %s", order, got)
		}
	}
	m := topOf(80, 24, listedLock("b", "p", "s", 0, 0, 1), listedLock("c", "p", "s", 0, 0, 1), listedLock("a", "p", "s", 0, 0, 1))
	for range 2 {
		if got := m.keysShown(); got != "a b c" {
			t.Errorf("alike ones: %s", got)
		}
		m.type_("r") // nor do they jump
	}
}

func TestTopKeys(t *testing.T) {
	for _, test := range []struct {
		typed, shows string
		wish         topWish
		line         string // that the frame has
	}{
		{"s", "job:b other:c job:a", wishNothing, "sorted by waiters"},
		{"sssss", "other:c job:a job:b", wishNothing, "sorted by age"},
		{"r", "job:b job:a other:c", wishNothing, "sorted by age, reversed"},
		{"/job", "job:a job:b", wishNothing, "filter: job_"},
		{"/JOB:A\r", "job:a", wishNothing, "filter JOB:A"},
		{"/web-1/s2\r", "job:b", wishNothing, "1 shown"},
		{"/flow\r", "other:c", wishNothing, "filter flow"},
		{"/job\x1b", "other:c job:a job:b", wishNothing, "sorted by age"},
		{"/job\r/\x15x\x1b", "job:a job:b", wishNothing, "filter job"},
		{"/job:ax\x7f\x7f\r", "job:a job:b", wishNothing, "filter job:"},
		{"/q?\r", "", wishNothing, "0 shown"},
		{"/日本\r", "", wishNothing, "filter 日本"},
		{"q", "other:c job:a job:b", wishQuit, ""},
		{"\x03", "other:c job:a job:b", wishQuit, ""},
		{"/x\x03", "", wishQuit, ""},
		{"\x1a", "other:c job:a job:b", wishSuspend, ""},
		{" ", "other:c job:a job:b", wishRefresh, ""},
		{"?", "other:c job:a job:b", wishNothing, "Any key goes back."},
		{"?q", "other:c job:a job:b", wishNothing, "sorted by age"},
		{"a", "", wishRefresh, "all pods | asking"},
		{"aa", "", wishRefresh, "this pod | asking"},
		{"\x1b[20~\x1b[1;5Cz", "other:c job:a job:b", wishNothing, "sorted by age"}, // unknown ones
	} {
		m := topOf(100, 24, threeLocks()...)
		wish := m.type_(test.typed)
		lines, _ := m.frame()
		if m.keysShown() != test.shows || wish != test.wish || !strings.Contains(strings.Join(lines, "\n"), test.line) {
			t.Errorf("%q: %q, wish %d, want %q, %d and %q in\n%s", test.typed, m.keysShown(), wish, test.shows, test.wish, test.line, strings.Join(lines, "\n"))
		}
	}
}

func TestTopScroll(t *testing.T) {
	var locks []lockView
	for i := range 25 {
		locks = append(locks, listedLock(fmt.Sprintf("k%02d", i), "p", "s", 0, 0, 0))
	}
	m := topOf(120, 14, locks...) // ten locks fit
	for _, step := range []struct{ typed, first, foot string }{
		{"", "k00", "1-10 of 25"},
		{"\x1b[A", "k00", "1-10"},
		{"\x1b[B\x1b[B", "k02", "3-12"},
		{"\x1b[6~", "k12", "13-22"},
		{"\x1b[6~", "k15", "16-25"},
		{"\x1bOB", "k15", "16-25"},
		{"\x1b[5~", "k05", "6-15"},
		{"\x1b[F", "k15", "16-25"},
		{"\x1b[H", "k00", "1-10"},
		{"\x1b[F/k0\r", "k00", "q quit"}, // ten are left
	} {
		m.type_(step.typed)
		lines, header := m.frame()
		if !strings.HasPrefix(lines[header+1], step.first+" ") || !strings.HasPrefix(lines[len(lines)-1], step.foot) {
			t.Errorf("%q: %q … %q, want %s … %s", step.typed, lines[header+1], lines[len(lines)-1], step.first, step.foot)
		}
	}
	m.type_("/\x15\r\x1b[F")
	m.found(topLocksOf(locks[:3]...), false, at) // most are gone
	if lines, header := m.frame(); !strings.HasPrefix(lines[header+1], "k00") {
		t.Errorf("after most have gone: %q", lines)
	}
}

// TestTopFailure: what was known stays, with why nothing newer is, until that comes.
func TestTopFailure(t *testing.T) {
	m := &topModel{sort: byAge}
	m.resize(80, 10)
	m.failed(errors.New("no sidecar\x1b[2J listens"))
	lines, _ := m.frame()
	if lines[0] != "locksidecar top: this pod | asking" || lines[2] != `! no sidecar\x1b[2J listens` {
		t.Errorf("%q", lines)
	}
	m.found(topLocksOf(threeLocks()...), true, at)
	m.failed(errors.New("gone"))
	lines, header := m.frame()
	if lines[2] != "! gone" || header != 3 || !strings.HasPrefix(lines[4], "other:c") ||
		!strings.Contains(lines[0], "more than 3 held, 3 shown") || !strings.Contains(lines[1], "only the first 3 by key were read") {
		t.Errorf("%q", lines)
	}
	m.found(topLocksOf(threeLocks()...), false, at)
	if lines, _ = m.frame(); strings.Contains(strings.Join(lines, ""), "gone") || strings.Contains(lines[0], "more") {
		t.Errorf("%q", lines)
	}
}

// TestTopFits: whatever the size and the names, a frame fits and is harmless.
func TestTopFits(t *testing.T) {
	evil := []lockView{
		listedLock("\x1b]0;x\x07"+strings.Repeat("k", 600), strings.Repeat("p\x9b", 40), "\x1b[2J", 1e6*time.Hour, -time.Hour, 1e9),
		listedLock(strings.Repeat("日本", 100), "pod\r\n", "\u202e", 0, 0, 0),
		{Key: "without a holder\t", State: "held"},
	}
	for columns := 0; columns < 130; columns += 3 {
		for lines := range 12 {
			m := topOf(columns, lines, evil...)
			m.kind, m.filter = "\x1b[31m", ""
			m.failed(errors.New("\x1b[2J"))
			for _, keys := range []string{"", "/\xc2\x9b", "\x1b?"} {
				m.type_(keys)
				frame, header := m.frame()
				if len(frame) > lines || header >= len(frame) {
					t.Fatalf("%d×%d: %d lines, header %d", columns, lines, len(frame), header)
				}
				for _, line := range frame {
					if width(line) > columns || strings.ContainsFunc(line, unprintable) {
						t.Fatalf("%d×%d: %q", columns, lines, line)
					}
				}
			}
		}
	}
}

// TestTopColumns: a long key leaves the holder a third.
func TestTopColumns(t *testing.T) {
	m := topOf(80, 10, listedLock(strings.Repeat("k", 100), strings.Repeat("p", 100), "s", 0, 0, 0))
	lines, header := m.frame()
	want := strings.Repeat("k", 33) + "~  " + strings.Repeat("p", 16) + "~      0ms        0      0ms"
	if got := lines[header+1]; got != want || width(got) != 80 {
		t.Errorf("\n%q, want\n%q", got, want)
	}
	m = topOf(80, 10, listedLock(strings.Repeat("k", 100), "p", "s", 0, 0, 0))
	if lines, header = m.frame(); !strings.Contains(lines[header+1], "k~  p/s  ") || width(lines[header+1]) != 80 {
		t.Errorf("%q", lines[header+1])
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0ms", 999 * time.Millisecond: "999ms", time.Second: "1.0s", 59990 * time.Millisecond: "59.9s",
		time.Minute: "1m00s", 3599 * time.Second: "59m59s", time.Hour: "1h00m", 24*time.Hour - 1: "23h59m",
		49 * time.Hour: "2d01h", -1500 * time.Millisecond: "-1.5s",
	} {
		if got := short(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

func TestKeyParser(t *testing.T) {
	var p keyParser
	for _, step := range []struct {
		bytes string
		want  []key
	}{
		{"a", []key{{keyRune, 'a'}}},
		{"\x1b", nil},
		{"[", nil},
		{"Ab", []key{{code: keyUp}, {keyRune, 'b'}}},
		{"\xe6\x97", nil},
		{"\xa5", []key{{keyRune, '日'}}},
		{"\xffx", []key{{keyRune, 'x'}}},
		{"\x1bq", []key{{code: keyEscape}, {keyRune, 'q'}}},
		{"\x1b\x1b[B", []key{{code: keyEscape}, {code: keyDown}}},
		{"\x1b[" + strings.Repeat("1;", maxSequence), nil},
		{"q", []key{{keyRune, 'q'}}}, // what never ended is forgotten
		{"\u202e\x00\x01", nil},
	} {
		if got := p.feed([]byte(step.bytes)); !slices.Equal(got, step.want) {
			t.Errorf("%q: %v, want %v", step.bytes, got, step.want)
		}
	}
	if p.feed([]byte{escape}); !slices.Equal(p.flush(), []key{{code: keyEscape}}) || len(p.flush()) != 0 {
		t.Error("ESC alone")
	}
}
