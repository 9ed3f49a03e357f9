package wire

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// A list is refused, or selects exactly the keys that have the prefix and the type; and
// its cursors lead on.
func FuzzList(f *testing.F) {
	for _, seed := range [][2]string{
		{"", "a"},
		{"scope=all&prefix=job%3A1&type=job&limit=1000", "job:12"},
		{"type=job&prefix=jo", "job:"},
		{"type=job&prefix=jobs", "jobs:1"},
		{"cursor=YQ&limit=7", "b"},
		{"type=a%3Ab", "a:b:"},
		{"type=%C3%A4&prefix=%C3", "\u00e4:x"},
		{"limit=1&limit=2", "\xff"},
		{"namespace=ours&scope=pod", "a"},
		{"namespace=theirs&scope=all", "a"},
		{"namespace=theirs&scope=pod", "a"},
	} {
		f.Add([]byte(seed[0]), seed[1])
	}
	f.Fuzz(func(t *testing.T, query []byte, key string) {
		r, none, p := ParseList(query, nil, "ours")
		if p != nil {
			if p.Status() != 400 || !json.Valid(p.Append(nil)) {
				t.Fatalf("%+v", p)
			}
			return
		}
		values, err := url.ParseQuery(string(query))
		if err != nil {
			t.Fatalf("taken, but net/url says %v: %q", err, query)
		}
		if r.Limit < 1 || r.Limit > maxLimit || r.Scope > lease.ScopeSession ||
			r.Namespace == "ours" || r.Namespace != "" && (r.Scope != lease.ScopeAll || r.Namespace != values.Get("namespace")) {
			t.Fatalf("%q: %+v", query, r)
		}
		if checkKey("key", key) != nil {
			return
		}
		kind, typed := values["type"]
		want := strings.HasPrefix(key, values.Get("prefix")) && (!typed || strings.Contains(key, ":") && store.TypeOf(key) == kind[0])
		if got := !none && strings.HasPrefix(key, r.Prefix); got != want {
			t.Fatalf("%q selects %q: %t, want %t: %+v", query, key, got, want, r)
		}
		again, _, p := ParseList([]byte("cursor="+encodeCursor(key)), nil, "ours")
		if p != nil || again.After != key {
			t.Fatalf("the cursor of %q leads to %q, %+v", key, again.After, p)
		}
	})
}

// A target is refused, or comes apart into what it is made of.
func FuzzTarget(f *testing.F) {
	for _, seed := range []string{
		"/v1/locks/a?token=1", "http://h/v1", "HTTP://[::1]:7624?x", "http://", "http:///v1", "*", "/a#b", "//x", "h:80", "?", "http://h#",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, p := ParseTarget(raw)
		if p != nil {
			if p.Status() != 400 && p.Status() != 404 || !json.Valid(p.Append(nil)) {
				t.Fatalf("%+v", p)
			}
			return
		}
		back := string(got.Path)
		if got.Query != nil {
			back += "?" + string(got.Query)
		}
		if got.Authority != nil {
			_, rest, _ := strings.Cut(string(raw), "//")
			if rest = strings.TrimPrefix(rest, string(got.Authority)); rest != back && (rest != "" || back != "/") {
				t.Fatalf("%q became %q and %q", raw, got.Authority, back)
			}
			return
		}
		if back != string(raw) || len(got.Path) > 0 && got.Path[0] != '/' || strings.Contains(back, "#") {
			t.Fatalf("%q became %q", raw, back)
		}
	})
}
