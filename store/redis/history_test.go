package redis

import (
	"testing"

	"github.com/locksidecar/locksidecar/store/cas"
)

// The result of an operation belongs to the history of its own answer, also if another operation hears of a later one before
// the operation returns. Otherwise a grant that the later server forgot would count as verified there.
func TestAnOperationKeepsItsHistory(t *testing.T) {
	b, err := New(Config{ServerConfig: cas.ServerConfig{URL: "redis+cluster://h", Instance: "one"}})
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
