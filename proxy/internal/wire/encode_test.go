package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

func parse(t *testing.T, b []byte) (object map[string]any) {
	t.Helper()
	if err := json.Unmarshal(b, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

// A large page ends early, and the cursor goes on where it ended.
func TestPageIsBounded(t *testing.T) {
	var all []lease.View
	for i := range maxLimit {
		all = append(all, lease.View{Lock: store.Lock{
			Key: fmt.Sprintf("k%03d", i), Held: true,
			Holder: store.Holder{Data: []byte(`"` + strings.Repeat("x", MaxData-2) + `"`)},
		}})
	}
	var got []string
	for rest, pages := all, 0; ; pages++ {
		b := AppendPage(nil, &lease.Page{Locks: rest, Next: "behind"})
		if len(b) > maxPage+16<<10 {
			t.Fatalf("a page has %d bytes", len(b))
		}
		page := parse(t, b)
		for _, l := range page["locks"].([]any) {
			got = append(got, l.(map[string]any)["key"].(string))
		}
		next, _, p := ParseList([]byte("cursor="+page["next_cursor"].(string)), nil, "default")
		if p != nil {
			t.Fatal(p.Detail)
		}
		after := next.After
		if after == "behind" {
			break
		}
		i := slices.IndexFunc(rest, func(v lease.View) bool { return v.Key == after })
		if rest = rest[i+1:]; pages > maxLimit {
			t.Fatal(errors.New("the pages do not end"))
		}
	}
	for i, key := range got {
		if len(got) != maxLimit || key != all[i].Key {
			t.Fatalf("%d keys, number %d is %s", len(got), i, key)
		}
	}
}

// BenchmarkParse measures the parts that are not fasthttp's.
// A free key is not kept, whatever its last grant was.
func TestOnlyAHeldLockIsKept(t *testing.T) {
	for _, lock := range []store.Lock{{Key: "k", Held: true, Kept: true}, {Key: "k", Held: true}, {Key: "k", Kept: true}} {
		if got := parse(t, AppendView(nil, &lease.View{Lock: lock}))["kept"]; got != (lock.Held && lock.Kept) {
			t.Errorf("%v of %+v", got, lock)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	b.Run("key", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = ParseKey([]byte("workflow:12345:step"))
		}
	})
	b.Run("body", func(b *testing.B) {
		body := []byte(`{"wait_ms":5000,"ttl_ms":30000}`)
		b.ReportAllocs()
		for b.Loop() {
			_, _ = ParseAcquire(nil, body)
		}
	})
	b.Run("grant", func(b *testing.B) {
		g := lease.Grant{
			Key: "workflow:12345:step", Token: 1 << 40, Session: "3f1c2a9b", ExpiresIn: 15 * time.Second,
			AcquiredAt: time.Date(2025, 3, 4, 5, 6, 7, 8_000, time.UTC),
		}
		b.ReportAllocs()
		var buf []byte
		for b.Loop() {
			buf = AppendGrant(buf[:0], &g)
		}
	})
}
