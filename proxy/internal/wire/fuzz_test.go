package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/store"
)

// A key is refused, or is what a strict reading of the path says.
func FuzzKey(f *testing.F) {
	for _, seed := range []string{
		"workflow:123", "..", "a%2Fstop", "a/b", "%", "%zz", "%00", "%C3%A4", "%C2%85", "\xff", "a+b", strings.Repeat("%41", 513),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, part []byte) {
		key, p := ParseKey(part)
		if p != nil {
			if key != "" || p.Status() != 400 && p.Status() != 404 || !json.Valid(p.Append(nil)) {
				t.Fatalf("%q, %+v", key, p)
			}
			return
		}
		want, err := url.PathUnescape(string(part))
		if err != nil || key != want || len(key) == 0 || len(key) > MaxKey || !utf8.ValidString(key) {
			t.Fatalf("%q: %q, want %q, %v", part, key, want, err)
		}
		for _, r := range key {
			if r < 0x20 || r >= 0x7f && r < 0xa0 {
				t.Fatalf("%q has a control character", key)
			}
		}
		if again, p := ParseKey([]byte(url.PathEscape(key))); p != nil || again != key {
			t.Fatalf("%q does not come back: %q, %v", key, again, p)
		}
		var back string
		if err := json.Unmarshal(appendString(nil, key), &back); err != nil || back != key {
			t.Fatalf("%q as JSON: %q, %v", key, back, err)
		}
	})
}

// A body is refused, or gives a request within the ranges; the standard library,
// which is laxer, must agree with what is taken.
func FuzzAcquireBody(f *testing.F) {
	for _, seed := range []string{
		"", "{}", `{"wait_ms":-1,"ttl_ms":500}`, `{"bind":"ttl","request_id":"f81d4fae-7dec-11d0-a765-00a0c91e6bf6"}`,
		`{"data":{"a":[1,"}"]}}`, `{"wait\u005fms":1,"wait_ms":1}`, `{"wait_ms":1.0}`, `[]`, `{"a":`, `{"data":"\ud800"} `,
		`{"owner":"\ud83d\ude00","reentrant":true,"max_hold_ms":5,"min_hold_ms":4,"on_success":"skip"}`, `{"owner":"\ude00"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, p := ParseAcquire(nil, body)
		if p != nil {
			if p.Status() != 400 && p.Status() != 413 || !json.Valid(p.Append(nil)) {
				t.Fatalf("%+v", p)
			}
			return
		}
		if len(body) == 0 {
			return
		}
		var lax struct {
			Wait int64           `json:"wait_ms"`
			TTL  int64           `json:"ttl_ms"`
			Data json.RawMessage `json:"data"`

			Owner     string `json:"owner"`
			Reentrant bool   `json:"reentrant"`
			MaxHold   int64  `json:"max_hold_ms"`
			MinHold   int64  `json:"min_hold_ms"`
			OnSuccess string `json:"on_success"`
		}
		if err := json.Unmarshal(body, &lax); err != nil {
			t.Fatalf("taken, but encoding/json says %v: %q", err, body)
		}
		wait := time.Duration(lax.Wait) * time.Millisecond
		if lax.Wait == -1 {
			wait = lease.WaitForever
		}
		if r.Wait != wait || r.TTL != time.Duration(lax.TTL)*time.Millisecond || lax.Wait < -1 || lax.Wait > maxMillis ||
			lax.TTL != 0 && (lax.TTL < minTTLMillis || lax.TTL > maxMillis) || len(r.Data) > MaxData {
			t.Fatalf("%q: %+v", body, r)
		}
		if r.Owner != lax.Owner || len(r.Owner) > maxName || r.Reentrant != lax.Reentrant || r.Reentrant && r.Owner == "" ||
			strings.Count(r.Owner, "\uFFFD") > strings.Count(strings.ToLower(string(body)), `\ufffd`)+strings.Count(string(body), "\uFFFD") {
			t.Fatalf("%q: %+v", body, r)
		}
		if r.MaxHold != time.Duration(lax.MaxHold)*time.Millisecond || r.MinHold != time.Duration(lax.MinHold)*time.Millisecond ||
			r.MaxHold > 0 && r.MinHold > r.MaxHold || max(r.MaxHold, r.MinHold) > 24*time.Hour || r.Skip != (lax.OnSuccess == "skip") {
			t.Fatalf("%q: %+v", body, r)
		}
		if r.Bind == lease.BindTTL && (r.Owner != "" || r.Reentrant || r.MaxHold != 0) {
			t.Fatalf("%q: %+v", body, r)
		}
		if r.Data != nil && !json.Valid(r.Data) {
			t.Fatalf("%q: data %q", body, r.Data)
		}
	})
}

// Several keys are refused, or are different ones that may stand in a path.
func FuzzKeys(f *testing.F) {
	for _, seed := range []string{
		`{"keys":["a","b"]}`, `{"keys":[]}`, `{"keys":["a","\u0061"]}`, `{"keys":[ "]" , "\\" ],"wait_ms":-1}`, `{"keys":[[],{}]}`,
		`{"keys":["\ud83d\ude00"]}`, `{"keys":["\ud83d\u0041"]}`, `{"keys":["\\ud83d"]}`, `{"keys":["a"],"on_success":"skip"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		keys, r, p := ParseAcquireAll(nil, body)
		if p != nil {
			if keys != nil || p.Status() != 400 && p.Status() != 413 || !json.Valid(p.Append(nil)) {
				t.Fatalf("%q, %+v", keys, p)
			}
			return
		}
		var lax struct {
			Keys []string `json:"keys"`
		}
		if err := json.Unmarshal(body, &lax); err != nil || !slices.Equal(keys, lax.Keys) {
			t.Fatalf("%q: %q, want %q, %v", body, keys, lax.Keys, err)
		}
		if len(keys) == 0 || len(keys) > MaxKeys || r.Skip || r.Reentrant {
			t.Fatalf("%q: %q, %+v", body, keys, r)
		}
		slices.Sort(keys)
		if len(slices.Compact(keys)) != len(lax.Keys) {
			t.Fatalf("%q: a key is there twice", body)
		}
		for _, key := range keys {
			if again, p := ParseKey([]byte(url.PathEscape(key))); p != nil || again != key {
				t.Fatalf("%q is no key: %v", key, p)
			}
		}
	})
}

// A release is refused, or names a token, and its other fields fit together.
func FuzzRelease(f *testing.F) {
	for _, seed := range [][2]string{
		{"token=1", ""},
		{"token=1&outcome=success&reentry=2", `{"result":{"a":[1]}}`},
		{"force=true", ""},
		{"force=true&token=1", ""},
		{"token=1", `{"result":1}`},
		{"outcome=failure&token=7&force=false", "{}"},
		{"%74oken=+1", ""},
	} {
		f.Add([]byte(seed[0]), []byte(seed[1]))
	}
	f.Fuzz(func(t *testing.T, query, body []byte) {
		r, force, p := ParseRelease(query, body)
		switch {
		case p != nil:
			if p.Status() != 400 && p.Status() != 413 || !json.Valid(p.Append(nil)) {
				t.Fatalf("%+v", p)
			}
		case force:
			if r.Token < 0 || r.Token > maxToken || r.Reentry != 0 || r.Outcome != store.NoOutcome || r.Result != nil {
				t.Fatalf("%+v", r)
			}
		case r.Token < 1 || r.Token > maxToken || r.Reentry < 0 || r.Outcome > store.Failure:
			t.Fatalf("%+v", r)
		case r.Result != nil && (r.Outcome != store.Success || len(r.Result) > MaxData || !json.Valid(r.Result)):
			t.Fatalf("%+v", r)
		}
	})
}

// A release in a body is refused, or is what encoding/json reads, and the same as one in a query.
func FuzzReleaseBody(f *testing.F) {
	for _, seed := range []string{
		`{"token":1}`, `{"token":9007199254740991,"outcome":"success","result":{"a":[1,"}"]},"reentry":2147483647}`, `{"outcome":"failure","token":7}`,
		`{"token":1,"result":null}`, `{"token":1,"outcome":"\u0073uccess"}`, `{"token":"1"}`, `{"token":1,"reentry":0}`, "", "[]", `{"token":1,"outcome":"\ud800"}`,
		`{"request_id":"f81d4fae-7dec-11d0-a765-00a0c91e6bf6","outcome":"failure"}`,
		`{"request_id":"f81d4fae-7dec-11d0-a765-00a0c91e6bf6","token":7}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, p := ParseReleaseBody(nil, body)
		if p != nil {
			if p.Status() != 400 && p.Status() != 413 || !json.Valid(p.Append(nil)) {
				t.Fatalf("%+v", p)
			}
			return
		}
		var lax struct {
			Token   int64           `json:"token"`
			Reentry int             `json:"reentry"`
			Outcome string          `json:"outcome"`
			Result  json.RawMessage `json:"result"`
			ID      string          `json:"request_id"`
		}
		if err := json.Unmarshal(body, &lax); err != nil {
			t.Fatalf("taken, but encoding/json says %v: %q", err, body)
		}
		if r.Token != lax.Token || r.Reentry != lax.Reentry || OutcomeName(r.Outcome) != lax.Outcome || r.Token > maxToken || r.Token < 1 && lax.ID == "" {
			t.Fatalf("%q: %+v", body, r)
		}
		query := url.Values{}
		if r.Token != 0 {
			query.Set("token", strconv.FormatInt(lax.Token, 10))
		}
		if lax.ID != "" {
			query.Set("request_id", lax.ID)
		}
		if lax.Reentry != 0 {
			query.Set("reentry", strconv.Itoa(lax.Reentry))
		}
		if lax.Outcome != "" {
			query.Set("outcome", lax.Outcome)
		}
		var result []byte
		if len(bytes.TrimSpace(lax.Result)) > 0 {
			result = fmt.Appendf(nil, `{"result":%s}`, lax.Result)
		}
		same, force, p := ParseRelease([]byte(query.Encode()), result)
		if p != nil || force || !reflect.DeepEqual(same, r) {
			t.Fatalf("%q: %+v, in a query %+v, %+v", body, r, same, p)
		}
	})
}
