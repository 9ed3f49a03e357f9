package cli

import (
	"net/http"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"backup:nightly": "backup:nightly", "": "", "a b": "a b", "日本 é": "日本 é",
		"\x1b]0;title\x07": `\x1b]0;title\a`, "a\tb\nc\rd": `a\tb\nc\rd`, `"a\\x1b"`: `"a\\x1b"`, "\x7f": `\x7f`,
		"\u009b2J": `\u009b2J`, "\u202egnp.exe": `\u202egnp.exe`, "\u2028": `\u2028`, "\u200b": `\u200b`,
		"\xff\x9b": `\xff\x9b`, "\ufffd": "\ufffd", "\U000e0041": `\U000e0041`,
	} {
		if got := client.Printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// FuzzPrintable: whatever comes in, what comes out only stands there.
func FuzzPrintable(f *testing.F) {
	for _, seed := range []string{"\x1b[2J", "\xc2\x9b", "ok", "\u202e", "\xf0\x9f"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := client.Printable(s)
		if strings.ContainsFunc(got, unprintable) || !utf8.ValidString(got) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// A table and an error only show a key, a name, a reason or data, whatever they contain.
// The API refuses characters below U+0020 in most of them, but none that turns the
// direction of writing. Data may also have U+009B, which some terminals take for ESC [.
// Proves: threat control characters
func TestCommandsPrintWhatATerminalOnlyShows(t *testing.T) {
	const key, shownKey = "job:\u202e1\u2028", `job:\u202e1\u2028`
	in := serve(t, map[string]string{"POD": "web\u202e0", "ALLOW_FORCE": "true"})
	app := sidecartest.Dial(t, in.Socket)
	status, answer := app.Call("PUT", client.LockPath(key), `{"owner":"o\u202e","data":{"x":"`+"\u009b2J"+`"}}`)
	if status != http.StatusOK {
		t.Fatal(status, answer)
	}
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{"stop", key, "--reason", "be\u202ecause"}, []string{shownKey}},
		{[]string{"ls"}, []string{shownKey, `web\u202e0`, `o\u202e`, `be\u202ecause (asked at `}},
		{[]string{"get", key}, []string{shownKey, `web\u202e0`, `o\u202e`, `\u009b2J`, `be\u202ecause (asked at `}},
		{[]string{"acquire", key, "--ttl", "1s"}, []string{`web\u202e0`, `o\u202e`}},
		{[]string{"acquire", key, "--ttl", "1s", "--data", "\x1b[2J"}, []string{`\x1b[2J`}},
		{[]string{"run", key, "--", "true"}, []string{`web\u202e0`, `o\u202e`}},
		{[]string{"release", key, "--force"}, []string{shownKey}},
	} {
		out, err := in.command(test.args...)
		if err != nil {
			out += err.Error()
		}
		if strings.ContainsFunc(strings.ReplaceAll(out, "\n", ""), unprintable) {
			t.Errorf("%q: %q", test.args, out)
		}
		for _, want := range test.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q: %q does not show %q", test.args, out, want)
			}
		}
	}
}

func TestErrorsOfASidecarArePrintable(t *testing.T) {
	f := newFakeSidecar(t)
	f.refuses(http.StatusInternalServerError)
	for _, args := range [][]string{
		{"get", "k"},
		{"ls"},
		{"stats"},
		{"health"},
		{"stop", "k"},
		{"acquire", "k", "--ttl", "1s"},
		{"release", "k", "--token", "1"},
		{"run", "k", "--", "true"},
	} {
		_, err := command(append([]string{"--socket", f.socket}, args...)...)
		if err == nil || !strings.Contains(err.Error(), `it is\x1b]0;broken\a on purpose`) {
			t.Errorf("%q: %q", args, err)
		}
	}
}
