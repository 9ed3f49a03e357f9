package cli

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/locksidecar/locksidecar/internal/client"
)

func TestKeysOfATerminal(t *testing.T) {
	for sent, want := range map[string]string{
		"q": "q", "jk": "j k", "é日": "é 日", "\r": "enter", "\x1b": "esc", "\x7f": "backspace", "\x03": "ctrl+c", "\x1a": "ctrl+z", "\x15": "ctrl+u",
		"\x1b[A\x1b[B": "up down", "\x1bOA": "up", "\x1b[5~\x1b[6~": "pgup pgdown", "\x1b[H\x1b[4~": "home end",
		"\x1b[15~q": "q", "\x1b[1;5Aq": "q", "\x1b[": "esc [", "\x1b[<0;1": "", "\x01\x00\xff": "", "\x1bx": "esc x",
	} {
		if got := strings.Join(keysOf([]byte(sent)), " "); got != want {
			t.Errorf("%q: %q, want %q", sent, got, want)
		}
	}
}

// FuzzKeys: whatever a terminal sends, its keys are names or printable characters, and the screen only shows them.
func FuzzKeys(f *testing.F) {
	f.Add([]byte("/job\r\x1b[Bx"))
	f.Add([]byte("\x1b[<0;1;1M\x1b[1;5A/\u202e\r?"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := screenOf(threeLocks()...)
		for _, key := range keysOf(sent) {
			if key == "" || strings.ContainsFunc(key, unicode.IsControl) {
				t.Fatalf("%q: a key %q", sent, key)
			}
			s.press(key)
			for _, line := range s.lines() {
				if strings.ContainsFunc(line, unprintable) {
					t.Fatalf("%q: a line %q", sent, line)
				}
			}
		}
	})
}

// screenOf shows these locks.
func screenOf(locks ...client.Lock) *topScreen {
	s := &topScreen{top: &top{listFlags: listFlags{scope: scopeAll}, sort: "key"}, list: &topList{}}
	for i := range locks {
		s.list.locks = append(s.list.locks, &locks[i])
	}
	return s
}

// What keys do: the keys, then what the second line says, the chosen key, and what is to be done.
func TestTopKeys(t *testing.T) {
	for sent, want := range map[string]struct {
		says, chosen string
		action       topAction
	}{
		"j":               {"", "job:b", topNothing},
		"jjjj":            {"", "other:c", topNothing},
		"jjk":             {"", "job:b", topNothing},
		"\x1b[F":          {"", "other:c", topNothing},
		"\x1b[6~\x1b[H":   {"", "job:a", topNothing},
		"j/other\r":       {"filter: other   (Esc ends it)", "other:c", topNothing},
		"/web-1q":         {"filter: web-1q_", "", topNothing}, // q is text here
		"/wex\x7fb-1":     {"filter: web-1_", "job:b", topNothing},
		"/web-1\x15other": {"filter: other_", "other:c", topNothing},
		"/other\x1b":      {"Ctrl-C", "other:c", topNothing}, // a chosen key stays chosen
		"/other\r\x1b":    {"Ctrl-C", "other:c", topNothing},
		"js":              {"", "job:b", topNothing},
		"q":               {"", "job:a", topEnd},
		"/\x03":           {"filter", "job:a", topEnd},
		"\x1a":            {"", "job:a", topSuspend},
		"a":               {"", "job:a", topLook},
		"x":               {"Ask web-2/s1 to stop, and to release job:a? y: yes", "job:a", topNothing},
		"xn":              {"not asked", "job:a", topNothing},
		"xq":              {"not asked", "job:a", topNothing},
		"x\r":             {"not asked", "job:a", topNothing},
		"jxy":             {"", "job:b", topStop},
		"/nothing\rx":     {"filter: nothing", "job:a", topNothing}, // there is nothing to stop
		"?x":              {"", "job:a", topNothing},                // any key leads back
	} {
		s := screenOf(threeLocks()...)
		action := topNothing
		s.lines()
		for _, key := range keysOf([]byte(sent)) {
			action = s.press(key)
			s.lines()
		}
		if says := s.lines()[1]; !strings.HasPrefix(says, want.says) || action != want.action || want.chosen != "" && s.chosenKey != want.chosen {
			t.Errorf("%q: it says %q, %s is chosen, action %d, want %+v", sent, says, s.chosenKey, action, want)
		}
	}
}

// s takes one order after the other, and r turns it round.
func TestTopOrderKeys(t *testing.T) {
	s := screenOf(threeLocks()...)
	var orders []string
	for range topSorts {
		orders = append(orders, s.sort)
		s.press("s")
	}
	slices.Sort(orders)
	if want := slices.Sorted(slices.Values(topSorts)); !slices.Equal(orders, want) || s.sort != "key" {
		t.Errorf("%q", orders)
	}
	if s.press("r"); s.rows()[0].Key != "other:c" || !strings.Contains(s.lines()[0], "order: key, reversed") {
		t.Error(s.lines())
	}
}

// The chosen row is on the screen, however many there are.
func TestTopScrolls(t *testing.T) {
	var locks []client.Lock
	for i := range 100 {
		locks = append(locks, listedLock(string(rune('A'+i/26))+string(rune('a'+i%26)), "p", "s", 0, 0, 0))
	}
	s := screenOf(locks...)
	for _, key := range []string{"end", "pgup", "up", "home", "pgdown", "pgdown", "down", "end"} {
		s.press(key)
		if text := strings.Join(s.lines(), "\n"); !strings.Contains(text, s.chosenKey+" ") || strings.Count(text, "\n") != s.height()-1 {
			t.Errorf("after %s, %s is not shown:\n%s", key, s.chosenKey, text)
		}
	}
	s.list.locks = s.list.locks[:1] // the others were released
	if rows := s.rows(); s.chosenKey != rows[0].Key || len(s.lines()) != headLines+1 {
		t.Error(s.lines())
	}
}
