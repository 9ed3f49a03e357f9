package apitest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const (
	holds  = `"mode":"exclusive","limit":null,"holders_count":1`
	holder = `{"instance":"a-1","pod":"a","session":null,"owner":null,"acquired_at":"2026-01-02T15:04:05.6Z",` +
		`"held_ms":1,"expires_in_ms":2,"data":{"any":["thing"]},"traceparent":null}`
	heldProblem = `{"type":"https://github.com/locksidecar/locksidecar/blob/main/docs/errors.md#held","title":"t","status":423,"code":"held","detail":"d",` +
		holds + `,"holder":` + holder + `,"kept":false,"queue_length":0,"cached":false,"reason":null,"quiet_ms":null}`
	grant = `{"granted":true,"key":"k","token":1,"session":null,"bind":"ttl","reentry":2,"expires_in_ms":1,"waited_ms":0,` +
		`"acquired_at":"2026-01-02T15:04:05.6Z","mode":"shared","limit":3,"slot":2}`
	skipped = `{"granted":false,"key":"k","outcome":"success","result":[1]}`
	counts  = `"held":1,"shared":0,"expired":0,"average_held_ms":1,"longest_held_ms":2`
	stats   = `{` + counts + `,"waiting":3,"types":[{"namespace":null,"type":"",` + counts + `,"waiting":0}],` +
		`"pods":[{"namespace":"n","pod":"p",` + counts + `}]}`
	lock = `{"key":"k:1","type":"k","state":"held","mine":false,"token":null,` + holds + `,"holder":` + holder +
		`,"kept":false,"holders":[],"queue_length":0,"cached":false,"stopping":null}`
)

// Each case breaks one rule of the checker.
func TestCheck(t *testing.T) {
	tests := map[string]struct {
		method, path string
		status       int
		header, body string
		wrong        string // a part of the error, or empty if the answer is right
	}{
		"health":         {"GET", "/healthz", 200, "", `{"status":"ok"}`, ""},
		"lock":           {"GET", "/v1/locks/{key}", 200, "", lock, ""},
		"page":           {"GET", "/v1/locks", 200, "", `{"locks":[` + lock + `],"next_cursor":"eA"}`, ""},
		"held":           {"PUT", "/v1/locks/{key}", 423, "", heldProblem, ""},
		"default":        {"PUT", "/v1/locks/{key}", 405, "Allow: GET", problem(405, "method_not_allowed"), ""},
		"unknown path":   {"GET", AnyPath, 404, "", problem(404, "not_found"), ""},
		"unknown method": {"POST", "/healthz", 405, "Allow: GET", problem(405, "method_not_allowed"), ""},
		"retry":          {"PUT", "/v1/locks/{key}", 503, "Retry-After: 1", problem(503, "store_unavailable"), ""},

		"grant":          {"PUT", "/v1/locks/{key}", 200, "", grant, ""},
		"skipped":        {"PUT", "/v1/locks/{key}", 200, "", skipped, ""},
		"several":        {"POST", "/v1/locks", 200, "", `{"locks":[` + grant + "," + grant + `]}`, ""},
		"one missing":    {"POST", "/v1/locks", 423, "", strings.Replace(heldProblem, `"holder"`, `"key":"k","holder"`, 1), ""},
		"asked to stop":  {"POST", "/v1/locks/{key}/stop", 202, "", `{"key":"k","requested":true}`, ""},
		"nobody to stop": {"POST", "/v1/locks/{key}/stop", 404, "", problem(404, "not_held"), ""},
		"stopping":       {"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, `"stopping":null`, stopping, 1), ""},
		"not forced":     {"DELETE", "/v1/locks/{key}", 403, "", problem(403, "forbidden"), ""},
		"an entry":       {"DELETE", "/v1/locks/{key}", 200, "", `{"key":"k","released":false,"reentry":1,"held_ms":1}`, ""},
		"early release":  {"DELETE", "/v1/locks/{key}", 400, "", member(problem(400, "invalid_request"), `"reentry":2`), ""},
		"late release": {
			"DELETE", "/v1/locks/{key}", 409, "", member(problem(409, "not_holder"), `"reason":"released","reentry":2`), "",
		},
		"late release, unknown": {
			"DELETE", "/v1/locks/{key}", 409, "", member(problem(409, "not_holder"), `"reason":"unknown_token","reentry":2`), "reason",
		},
		"reentry 0":       {"PUT", "/v1/locks/{key}", 200, "", strings.Replace(grant, `"reentry":2`, `"reentry":0`, 1), "reentry"},
		"skip of several": {"POST", "/v1/locks", 200, "", `{"locks":[` + skipped + `]}`, "granted"},
		"none missing":    {"POST", "/v1/locks", 423, "", heldProblem, "key"},
		"key of one":      {"PUT", "/v1/locks/{key}", 423, "", strings.Replace(heldProblem, `"holder"`, `"key":"k","holder"`, 1), "key"},
		"half a skip":     {"PUT", "/v1/locks/{key}", 200, "", strings.Replace(skipped, `,"result":[1]`, "", 1), "result"},
		"token of a skip": {"PUT", "/v1/locks/{key}", 200, "", member(skipped, `"token":1`), "token"},
		"not held by GET": {"GET", "/v1/locks/{key}", 404, "", problem(404, "not_held"), "code"},
		"entry elsewhere": {"PATCH", "/v1/locks/{key}", 400, "", member(problem(400, "invalid_request"), `"reentry":2`), "reentry"},
		"unknown in a holder": {
			"PUT", "/v1/locks/{key}", 423, "", strings.Replace(heldProblem, `"pod"`, `"x":1,"pod"`, 1), "/x",
		},
		"unknown in stopping": {
			"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, `"stopping":null`, strings.Replace(stopping, "{", `{"x":1,`, 1), 1), "/x",
		},

		"another status":     {"PUT", "/v1/locks/{key}", 418, "", problem(418, "teapot"), "anyOf"},
		"code of elsewhere":  {"GET", "/v1/locks/{key}", 503, "", problem(503, "draining"), "code"},
		"body's status":      {"GET", AnyPath, 400, "", problem(404, "not_found"), "says status"},
		"body's type":        {"GET", AnyPath, 404, "", strings.Replace(problem(404, "not_found"), "#not_found", "#other", 1), "the type"},
		"no retry":           {"PUT", "/v1/locks/{key}", 503, "", problem(503, "store_unavailable"), "Retry-After"},
		"retry for draining": {"PUT", "/v1/locks/{key}", 503, "Retry-After: 1", problem(503, "draining"), "Retry-After"},
		"no allow":           {"POST", "/healthz", 405, "", problem(405, "method_not_allowed"), "Allow"},
		"content type":       {"GET", "/healthz", 200, "Content-Type: text/plain", `{"status":"ok"}`, "Content-Type"},
		"unknown member":     {"GET", "/healthz", 200, "", `{"status":"ok","more":1}`, "more"},
		"unknown deep":       {"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, `"pod"`, `"x":1,"pod"`, 1), "/x"},
		"unknown in list":    {"GET", "/v1/locks", 200, "", `{"locks":[` + strings.Replace(lock, `"mine"`, `"x":1,"mine"`, 1) + `]}`, "/x"},
		"unknown in problem": {"PUT", "/v1/locks/{key}", 423, "", strings.Replace(heldProblem, `"title"`, `"x":1,"title"`, 1), "/x"},
		"missing member":     {"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, `,"stopping":null`, "", 1), "stopping"},
		"free with a holder": {"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, `"held","mine"`, `"free","mine"`, 1), "holder"},
		"token of others":    {"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, `"token":null`, `"token":1`, 1), "token"},
		"no token at all":    {"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, `"token":null,`, "", 1), "token"},
		"no next page":       {"GET", "/v1/locks", 200, "", `{"locks":[],"next_cursor":null}`, ""},
		"no word of one":     {"GET", "/v1/locks", 200, "", `{"locks":[]}`, "next_cursor"},
		"mine without token": {"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, `"mine":false`, `"mine":true`, 1), "token"},
		"time zone":          {"GET", "/v1/locks/{key}", 200, "", strings.Replace(lock, "05.6Z", "05.6+01:00", 1), "acquired_at"},
		"not JSON":           {"GET", "/healthz", 200, "", "ok", "not JSON"},
		"undocumented path":  {"GET", "/v2", 200, "", "{}", "not documented"},
		"figures":            {"GET", "/metrics", 200, "Content-Type: text/plain; version=0.0.4", "x 1", ""},
		"no figures":         {"GET", "/metrics", 404, "", problem(404, "not_found"), ""},
		"figures as JSON":    {"GET", "/metrics", 200, "", "{}", "Content-Type"},
		"stats":              {"GET", "/v1/stats", 200, "", stats, ""},
		"no namespace":       {"GET", "/v1/stats", 200, "", strings.Replace(stats, `"namespace":null,`, "", 1), "namespace"},
		"waiters of a pod":   {"GET", "/v1/stats", 200, "", strings.Replace(stats, `"pod":"p"`, `"pod":"p","waiting":1`, 1), "waiting"},
		"negative":           {"GET", "/v1/stats", 200, "", strings.Replace(stats, `"held":1`, `"held":-1`, 1), "held"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			header := http.Header{"Content-Type": {jsonType}}
			if test.status >= 400 {
				header.Set("Content-Type", problemType+"; charset=utf-8")
			}
			if name, value, ok := strings.Cut(test.header, ": "); ok {
				header.Set(name, value)
			}
			err := check(test.method, test.path, test.status, header, []byte(test.body))
			switch {
			case test.wrong == "" && err != nil:
				t.Error(err)
			case test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)):
				t.Errorf("got %v, want something about %q", err, test.wrong)
			}
		})
	}
}

func TestCheckEvent(t *testing.T) {
	const session = `{"session":"9f86d081884c7d659a2feaa0c55ad015","ttl_ms":1000,"expires_in_ms":900}`
	CheckEvent(t, "POST", "/v1/sessions", "session", []byte(session))
	CheckEvent(t, "POST", "/v1/sessions", "lost", []byte(`{"key":"k","token":1,"reason":"expired"}`))
	CheckEvent(t, "POST", "/v1/sessions", "stop", []byte(`{"key":"k","token":1,"reason":null}`))
	const watch = "/v1/locks/{key}/events"
	for event, data := range map[string]string{
		"state": lock, "acquired": `{"key":"k","token":1,"mode":null,"limit":null,"slot":null,"holder":` + holder + `}`, "expired": `{"key":"k","token":1}`,
		"released": `{"key":"k","token":1,"outcome":"failure","result":null}`,
		"stopping": `{"key":"k","token":1,"reason":"r","requested_at":"2026-01-02T15:04:05.6Z"}`,
		"problem":  problem(503, "store_unavailable"),
	} {
		CheckEvent(t, "GET", watch, event, []byte(data))
		mock := &failures{TB: t}
		CheckEvent(mock, "GET", watch, event, []byte(member(data, `"x":1`)))
		CheckEvent(mock, "GET", watch, event, []byte(`{}`))
		CheckEvent(mock, "POST", "/v1/sessions", event, []byte(data))
		if mock.count != 3 {
			t.Errorf("%s: %d of 3 wrong events were found", event, mock.count)
		}
	}
	for event, data := range map[string]string{
		"stop":    `{"key":"k","token":1}`,
		"session": `{"session":"s","ttl_ms":1000,"expires_in_ms":900,"x":1}`,
		"lost":    `{"key":"k","token":1,"reason":"bored"}`,
		"other":   session,
	} {
		mock := &failures{TB: t}
		CheckEvent(mock, "POST", "/v1/sessions", event, []byte(data))
		if mock.count != 1 {
			t.Errorf("%s %s was accepted", event, data)
		}
	}
}

const stopping = `"stopping":{"reason":null,"requested_at":"2026-01-02T15:04:05.6Z"}`

// member adds members to a JSON object.
func member(object, more string) string { return strings.TrimSuffix(object, "}") + "," + more + "}" }

// failures counts Errorf instead of failing.
type failures struct {
	testing.TB
	count int
}

func (f *failures) Errorf(string, ...any) { f.count++ }

func problem(status int, code string) string {
	more := ""
	if code == "store_unavailable" {
		more = `,"reason":null,"quiet_ms":null`
	}
	return fmt.Sprintf(`{"type":"https://github.com/locksidecar/locksidecar/blob/main/docs/errors.md#%[1]s","title":"t","status":%[2]d,"code":"%[1]s","detail":"d"%[3]s}`, code, status, more)
}
