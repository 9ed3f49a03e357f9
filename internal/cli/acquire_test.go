package cli

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/exitcode"
)

const requestID = "7f1b5c9e-4a43-4a27-9f4b-2f5d8f3c6a11"

// An acquire that is not answered is released by its id, unless others use the id.
func TestAcquireWithoutAnAnswerIsReleased(t *testing.T) {
	type asked struct{ call, id string }
	calls := make(chan asked, 3)
	socket := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		call := r.Method + " " + r.URL.Path
		if r.Method == http.MethodDelete {
			calls <- asked{call, r.URL.Query().Get("request_id")}
			_, _ = w.Write([]byte(`{"key":"k","released":true,"reentry":0,"held_ms":1}`))
			return
		}
		var body acquireBody
		_ = json.NewDecoder(r.Body).Decode(&body)
		calls <- asked{call, body.RequestID}
		panic(http.ErrAbortHandler) // closes the connection
	})
	_, err := command("--socket", socket, "acquire", "k", "--ttl", "60s")
	if exitcode.Of(err) != exitcode.Unavailable || strings.Contains(err.Error(), "--request-id") {
		t.Errorf("%v", err)
	}
	first, second := <-calls, <-calls
	if first.call != "PUT /v1/locks/k" || second.call != "DELETE /v1/locks/k" || first.id != second.id || len(first.id) != 36 {
		t.Errorf("%q and %q", first, second)
	}
	_, err = command("--socket", socket, "acquire", "k", "--ttl", "60s", "--request-id", requestID)
	if exitcode.Of(err) != exitcode.Unavailable || !strings.Contains(err.Error(), "--request-id "+requestID) {
		t.Errorf("%v", err)
	}
	if third := <-calls; third.call != "PUT /v1/locks/k" || len(calls) != 0 {
		t.Errorf("%q, and %d more", third, len(calls))
	}
}
