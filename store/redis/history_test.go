package redis

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/store/cas"
)

// The result of an operation belongs to the history of its own answer, also if another operation hears of a later one before
// the operation returns. Otherwise a grant that the later server forgot would count as verified there.
// Proves: A9
func TestAnOperationKeepsItsHistory(t *testing.T) {
	b, err := NewServer(Config{ServerConfig: cas.ServerConfig{URL: "redis+cluster://h"}})
	if err != nil {
		t.Fatal(err)
	}
	const part = 3
	b.history.note(part, "first")
	before := b.newTold()
	before.note(part, "first")
	read := b.together(before)
	b.history.note(part, "second") // of another operation
	if b.together(before) != read {
		t.Error("it follows the other operation")
	}
	after := b.newTold()
	after.note(part, "second")
	if b.together(after) == read || b.together(b.newTold()) != b.together(after) {
		t.Error("a new history looks like the one before")
	}
	both := b.newTold()
	both.note(part, "first")
	both.note(part, "second")
	if b.together(both) != read {
		t.Error("a result that is partly of an earlier history counts as new")
	}
}

// An instance always tells the tokens that it saw in earlier histories. It tells all that it saw together with the history that it knows,
// and a server that lost everything compares that history with its own. A partition that the instance does not know is told only the former.
func TestWhatIsRemembered(t *testing.T) {
	h := &histories{of: make([]string, 2)}
	wants := func(part int, want string) {
		t.Helper()
		if got := h.remembered(part, time.Second); got != want {
			t.Errorf("partition %d: %q, want %q", part, got, want)
		}
	}
	wants(0, "1000 1000 0 0 ")
	h.note(1, "aa")
	h.opened(2 * time.Second)
	h.saw(&cas.Record{Base: 7, Tokens: 2})
	wants(0, "1000 1000 0 0 ")
	wants(1, "1000 2000 0 9 aa")
	h.note(1, "bb")
	h.opened(3 * time.Second)
	h.saw(&cas.Record{Base: 20})
	wants(0, "2000 2000 9 9 ")
	wants(1, "2000 3000 9 20 bb")
}
