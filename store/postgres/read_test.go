package postgres

import (
	"strings"
	"testing"
)

func TestBehindIsBehindAllKeysWithThePrefix(t *testing.T) {
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
