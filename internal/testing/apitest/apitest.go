// Package apitest checks real answers of the server against the OpenAPI document. End-to-end tests
// pass it every answer, so an undocumented status, code, header or member fails the test.
package apitest

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"testing"
)

const (
	jsonType    = "application/json"
	problemType = "application/problem+json"
	eventType   = "text/event-stream"
	// plainType and metricsType are the formats of Prometheus.
	plainType   = "text/plain"
	metricsType = "application/openmetrics-text"
)

// problemTypes is the prefix of the type of each problem.
const problemTypes = "https://github.com/locksidecar/locksidecar/blob/main/docs/errors.md#"

// AnyPath stands for a path that the document does not have.
const AnyPath = ""

// Check fails the test unless the document describes the answer. path is the template in the
// document, such as /v1/locks/{key}, or [AnyPath]. Check ignores bodies that are not JSON. For the
// events of a stream see [CheckEvent].
func Check(t testing.TB, method, path string, status int, header http.Header, body []byte) {
	t.Helper()
	if err := check(method, path, status, header, body); err != nil {
		t.Errorf("%s %s: the answer %d is not as documented: %v\n%s", method, path, status, err, body)
	}
}

// CheckEvent fails the test unless the document describes the event of the
// stream that method and path open.
func CheckEvent(t testing.TB, method, path, event string, data []byte) {
	t.Helper()
	d, err := load()
	if err != nil {
		t.Fatal(err)
	}
	_, where := d.at("paths", path, lower(method), "responses", "200", "content", eventType, "x-events")
	if where == nil {
		t.Errorf("%s %s: no events are documented", method, path)
		return
	}
	if err := d.validate(data, append(where, event)); err != nil {
		t.Errorf("%s %s: the event %s is not as documented: %v\n%s", method, path, event, err, data)
	}
}

func check(method, path string, status int, header http.Header, body []byte) error {
	d, err := load()
	if err != nil {
		return err
	}
	response, where, err := d.response(method, path, status)
	if err != nil {
		return err
	}
	contentType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	content, _ := response["content"].(map[string]any)
	if _, ok := content[contentType]; !ok {
		return fmt.Errorf("the Content-Type is %q", header.Get("Content-Type"))
	}
	if slices.Contains([]string{eventType, plainType, metricsType}, contentType) {
		return nil // not JSON
	}
	if err := d.validate(body, append(where, "content", contentType, "schema")); err != nil {
		return err
	}
	if contentType == problemType {
		return checkProblem(status, header, body)
	}
	return nil
}

// response finds the description of an answer: that of its status, or else the default.
func (d *document) response(method, path string, status int) (map[string]any, []string, error) {
	if path == AnyPath {
		r, where := d.at("components", "responses", "Problem")
		return r, where, nil
	}
	item, _ := d.at("paths", path)
	if item == nil {
		return nil, nil, fmt.Errorf("the path is not documented")
	}
	operation := lower(method)
	if item[operation] == nil {
		// For a method that the path does not have, only the default problem is documented.
		r, where := d.at("components", "responses", "Problem")
		return r, where, nil
	}
	for _, key := range []string{strconv.Itoa(status), "default"} {
		if r, where := d.at("paths", path, operation, "responses", key); r != nil {
			return r, where, nil
		}
	}
	return nil, nil, fmt.Errorf("the status is not documented")
}

// checkProblem checks the connections between a problem and its answer, which schemas cannot
// express.
func checkProblem(status int, header http.Header, body []byte) error {
	var p struct {
		Type   string `json:"type"`
		Code   string `json:"code"`
		Status int    `json:"status"`
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return err
	}
	if p.Status != status {
		return fmt.Errorf("the body says status %d", p.Status)
	}
	if p.Type != problemTypes+p.Code {
		return fmt.Errorf("the type is %q, the code %q", p.Type, p.Code)
	}
	later := slices.Contains([]string{"limit", "store_unavailable"}, p.Code)
	if (header.Get("Retry-After") != "") != later {
		return fmt.Errorf("%s with Retry-After %q", p.Code, header.Get("Retry-After"))
	}
	if (header.Get("WWW-Authenticate") != "") != (p.Code == "unauthorized") {
		return fmt.Errorf("%s with WWW-Authenticate %q", p.Code, header.Get("WWW-Authenticate"))
	}
	if (header.Get("Allow") != "") != (p.Code == "method_not_allowed") {
		return fmt.Errorf("%s with Allow %q", p.Code, header.Get("Allow"))
	}
	return nil
}

func lower(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "put"
	case http.MethodPost:
		return "post"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return method
}
