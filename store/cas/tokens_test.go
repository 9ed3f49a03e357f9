package cas_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/fake"
)

// TestTokensOfAnotherStore: the next token is above all that were granted, also those of keys that have no record any
// more, in any namespace. A store whose tokens are raised to it grants greater ones.
func TestTokensOfAnotherStore(t *testing.T) {
	pair(t, cas.Config{}, func(server *fake.Server, a, b *instance) {
		last := int64(0)
		for _, key := range []string{"gone", "kept", "last"} {
			ask := a.ask(key)
			grant := a.gets(ask, store.Granted)
			if last = max(last, grant.Token); key != "kept" {
				a.releases(ask, grant, store.Holds)
			}
		}
		records, _ := server.Records()
		next, err := b.NextToken(b.Context())
		b.ok(err)
		if next <= last {
			t.Errorf("the next token is %d after %d", next, last)
		}
		if after, _ := server.Records(); after != records {
			t.Errorf("%d records, and %d before", after, records)
		}
		server.Corrupt("n/kept", []byte{0xff})
		if _, err := b.NextToken(b.Context()); err == nil || store.OutcomeUnknown(err) {
			t.Errorf("with a record that cannot be read, whose key may be held: %v", err)
		}
		if err := b.RaiseTokens(b.Context(), store.LargestToken/2+1); err == nil || store.OutcomeUnknown(err) {
			t.Errorf("raised above the largest token: %v", err)
		}
		first := next + 1<<40
		b.ok(b.RaiseTokens(b.Context(), first))
		for _, key := range []string{"gone", uuid.NewString()} {
			if grant := a.gets(a.ask(key), store.Granted); grant.Token < first {
				t.Errorf("token %d, raised to %d", grant.Token, first)
			}
		}
	})
}
