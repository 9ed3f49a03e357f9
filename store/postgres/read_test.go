package postgres

import (
	"strings"
	"testing"
)

func TestBehindFollowsAllKeysWithThePrefix(t *testing.T) {
	t.Parallel()
	last := "\U0010FFFF"
	for prefix, want := range map[string]string{
		"":             behindAll,
		"job:":         "job;",
		"a\uD7FF":      "a\uE000",
		"a" + last:     "b",
		last + last:    behindAll,
		"ü":            "ý",
		"%_\\":         "%_]",
		"a" + "\u007f": "a" + "\u0080",
	} {
		got := behind(prefix)
		if got != want {
			t.Errorf("behind(%q) = %q, want %q", prefix, got, want)
		}
		if longest := prefix + strings.Repeat(last, (maxKeyBytes-len(prefix))/len(last)); longest >= got {
			t.Errorf("%q is not behind %q", got, longest)
		}
	}
}

// An operator can write any text into a row by hand. Valid JSON is shown as it is, other text is
// not shown.
func TestInvalidJSONIsNotShown(t *testing.T) {
	t.Parallel()
	for text, shown := range map[string]bool{
		`{"a":[1,"}"]}`: true, "1": true, `""`: true, "null": true, "{\n}": true,
		"no": false, "": false, " ": false, `{"a":`: false, `1,"forged":true`: false, "{}{}": false, "\"\x00\"": false,
	} {
		if got := jsonOf(&text); (got != nil) != shown || shown && string(got) != text {
			t.Errorf("%q is shown as %q", text, got)
		}
	}
	if jsonOf(nil) != nil {
		t.Error("a missing value is shown")
	}
}
