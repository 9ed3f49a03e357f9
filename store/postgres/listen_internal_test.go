package postgres

import (
	"testing"
	"time"
)

// A listener that has lost a good connection listens again at once, whatever pauses came before. Connections that end soon are followed by longer
// and longer pauses, because a server may end all of them.
func TestPausesBetweenConnections(t *testing.T) {
	t.Parallel()
	p := pauses{first: 50 * time.Millisecond, longest: 5 * time.Second}
	for _, c := range []struct {
		what         string
		last         time.Duration
		heard        bool
		lasted, want time.Duration
	}{
		{"the first failure", 0, false, time.Second, p.first},
		{"another one", p.first, false, time.Minute, 2 * p.first},
		{"the last of many", 4 * time.Second, false, 0, p.longest},
		{"a good connection after many failures", p.longest, true, goodConnection, p.first},
		{"a connection that ends at once", 2 * p.first, true, goodConnection - 1, 4 * p.first},
	} {
		if got := p.after(c.last, c.heard, c.lasted); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}
