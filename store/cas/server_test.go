package cas_test

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/store/cas"
)

func TestBehindFollowsAllNamesWithThePrefix(t *testing.T) {
	for prefix, want := range map[string]string{"": "", "ns/": "ns0", "a\xff": "b", "\xff\xff": "", "a\x00": "a\x01"} {
		if got := cas.Behind(prefix); got != want {
			t.Errorf("behind %q is %q, want %q", prefix, got, want)
		} else if got != "" && prefix+strings.Repeat("\xff", 9) >= got {
			t.Errorf("%q is not behind all names with %q", got, prefix)
		}
	}
}

func TestPausesGrowUntilASuccess(t *testing.T) {
	var b cas.Backoff
	longest := cas.FirstPause
	for range 10 {
		if pause := b.Next(); pause < longest/2 || pause >= longest*3/2 {
			t.Errorf("a pause of %s, want about %s", pause, longest)
		}
		longest = min(2*longest, cas.LongPause)
	}
	b.Reset()
	if pause := b.Next(); pause >= 2*cas.FirstPause {
		t.Errorf("%s after a success", pause)
	}
}
