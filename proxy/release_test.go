package proxy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// A release that stands in a body is answered as one in a query, step by step.
func TestReleaseByDeleteAndPost(t *testing.T) {
	const acquire, id = `{"owner":"o","reentrant":true}`, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
	type step struct{ query, body, posted string }
	var query, posted []string
	for _, post := range []bool{false, true} {
		f := start(t)
		c, other := f.dial(), f.dial()
		c.do("PUT", "/v1/locks/a", acquire).want(t, 200, "")
		c.do("PUT", "/v1/locks/a", acquire).want(t, 200, "")
		other.do("PUT", "/v1/locks/b", "").want(t, 200, "")
		var answers []string
		for _, s := range []step{
			{"", "", "{}"},
			{"?token=0", "", `{"token":0}`},
			{"?token=9007199254740992", "", `{"token":9007199254740992}`},
			{"?token=1&reentry=0", "", `{"token":1,"reentry":0}`},
			{"?token=1&reentry=1", "", `{"token":1,"reentry":1}`},
			{"?token=1&reentry=3", "", `{"token":1,"reentry":3}`},
			{"?token=1&outcome=maybe", "", `{"token":1,"outcome":"maybe"}`},
			{"?token=1&outcome=failure", `{"result":1}`, `{"token":1,"outcome":"failure","result":1}`},
			{"?token=1", `{"result":1}`, `{"token":1,"result":1}`},
			{"?token=2", "", `{"token":2}`},
			{"?token=1&outcome=success", `{"result":` + nested(wire.MaxDepth+2) + `}`, `{"token":1,"outcome":"success","result":` + nested(wire.MaxDepth+2) + `}`},
			{"?token=1&request_id=" + id, "", `{"token":1,"request_id":"` + id + `"}`},
			{"?reentry=1&request_id=" + id, "", `{"reentry":1,"request_id":"` + id + `"}`},
			{"?request_id=no", "", `{"request_id":"no"}`},
			{"?token=1&reentry=2", "", `{"token":1,"reentry":2}`},
			{"?token=1&outcome=success", `{"result":{"n":[1]}}`, `{"result":{"n":[1]},"outcome":"success","token":1}`},
			{"?token=1", "", `{"token":1}`},
		} {
			var a answer
			if post {
				a = c.do("POST", "/v1/locks/a/release", s.posted)
			} else {
				a = c.do("DELETE", "/v1/locks/a"+s.query, s.body)
			}
			text := strings.NewReplacer("query parameter", "field", `\"`, "", ", without fraction or exponent", "").Replace(a.text)
			answers = append(answers, heldMillis.ReplaceAllString(text, `"held_ms":0`))
		}
		if r := f.locks.released; r.Outcome != store.Success && r.Token != 1 {
			t.Errorf("the last release is %+v", r)
		}
		if query == nil {
			query = answers
		} else {
			posted = answers
		}
	}
	if !slices.Equal(query, posted) {
		for i := range query {
			if query[i] != posted[i] {
				t.Errorf("step %d: DELETE says %s\nPOST says %s", i, query[i], posted[i])
			}
		}
	}
}

var heldMillis = regexp.MustCompile(`"held_ms":\d+`)

func TestReleaseBodies(t *testing.T) {
	f := start(t)
	c := f.dial()
	c.do("PUT", "/v1/locks/a", "").want(t, 200, "")
	for body, part := range map[string]string{
		"": "token is missing", "{}": "token is missing", `{"token":"1"}`: "token is a string", `{"token":1.0}`: "token is 1.0",
		`{"token":null}`: "token is null", `{"token":1,"outcome":null}`: "outcome is null", `{"token":1,"outcome":7}`: "outcome is a number",
		`{"token":1,"reentry":"1"}`: "reentry is a string", `{"token":1,"force":true}`: `"force"`, `{"token":1,"token":1}`: "twice", "[]": "object",
	} {
		a := c.do("POST", "/v1/locks/a/release", body)
		a.want(t, 400, "invalid_request")
		a.detail(t, part)
	}
	a := c.do("POST", "/v1/locks/a/release?token=1", "")
	a.want(t, 400, "invalid_request")
	a.detail(t, "query parameter")
	c.do("GET", "/v1/locks/a/release", "").want(t, 405, "method_not_allowed")
	c.do("POST", "/v1/locks//release", "").want(t, 400, "invalid_request")
	c.do("POST", "/v1/locks/a/release", `{"token":1}`, "Lock-Session: unknown").want(t, 410, "session_ended")
	f.dial().do("POST", "/v1/locks/a/release", `{"token":1}`).want(t, 409, "not_holder")
	// A key of that name is a key.
	c.do("PUT", "/v1/locks/a%2Frelease", "").want(t, 200, "")
	if a := c.do("POST", "/v1/locks/a%2Frelease/release", `{"token":2}`); !strings.HasPrefix(a.text, `{"key":"a/release","released":true,"reentry":0,"held_ms":`) {
		t.Error(a.text)
	}
	c.do("POST", "/v1/locks/a/release", `{"token":1,"outcome":"failure"}`).want(t, 200, "")
	if r := f.locks.released; r.Key != "a" || r.Token != 1 || r.Outcome != store.Failure {
		t.Errorf("released %+v", r)
	}
}
