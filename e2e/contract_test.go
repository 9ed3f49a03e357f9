package e2e

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/apitest"
)

// checkContract checks an answer against the OpenAPI document.
func checkContract(t testing.TB, method, path string, ans answer) {
	t.Helper()
	apitest.Check(t, method, template(path), ans.status, ans.header, ans.body)
}

// template returns the document's path for a request.
func template(path string) string {
	path, _, _ = strings.Cut(path, "?")
	for prefix, template := range map[string]string{
		"/v1/locks/":    "/v1/locks/{key}",
		"/v1/sessions/": "/v1/sessions/{id}",
	} {
		key, ok := strings.CutPrefix(path, prefix)
		if !ok {
			continue
		}
		key, below, _ := strings.Cut(key, "/")
		switch {
		case below == "":
			return template
		case prefix == "/v1/locks/" && key != "" && (below == "stop" || below == "waiters" || below == "events"):
			return template + "/" + below
		}
	}
	switch path {
	case "/v1", "/v1/locks", "/v1/sessions", "/v1/stats", "/v1/waiters", "/healthz", "/readyz", "/metrics":
		return path
	}
	return apitest.AnyPath
}
