package api_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/locksidecar/locksidecar/api"
	"github.com/locksidecar/locksidecar/internal/testing/apitest"
)

func TestDocumentIsValidOpenAPI(t *testing.T) {
	doc := load(t)
	if err := doc.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil {
		t.Error(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("version %q", doc.OpenAPI)
	}
}

// The examples are what people copy: they must be right to the last member.
func TestExamplesAreAsDocumented(t *testing.T) {
	doc := load(t)
	for path, item := range doc.Paths.Map() {
		for method, operation := range item.Operations() {
			status, response := success(t, operation)
			media := response.Content.Get("application/json")
			if plain := response.Content.Get("text/plain"); plain != nil {
				header := http.Header{"Content-Type": {"text/plain"}}
				apitest.Check(t, method, path, status, header, []byte(plain.Example.(string)))
				continue
			}
			if media == nil {
				checkStream(t, method, path, response.Content.Get("text/event-stream"))
				continue
			}
			if media.Example == nil {
				t.Errorf("%s %s has no example", method, path)
				continue
			}
			header := http.Header{"Content-Type": {"application/json"}}
			apitest.Check(t, method, path, status, header, encode(t, media.Example))
		}
	}
}

// success is the answer of an operation that went well.
func success(t *testing.T, operation *openapi3.Operation) (int, *openapi3.Response) {
	t.Helper()
	for _, status := range []int{200, 202} {
		if response := operation.Responses.Status(status); response != nil {
			return status, response.Value
		}
	}
	t.Fatalf("%s never goes well", operation.OperationID)
	return 0, nil
}

// checkStream checks the example of an event stream, which must show each event; a
// problem ends the stream, and has no place between the others.
func checkStream(t *testing.T, method, path string, media *openapi3.MediaType) {
	t.Helper()
	missing := maps.Clone(media.Extensions["x-events"].(map[string]any))
	delete(missing, "problem")
	for part := range strings.SplitSeq(strings.TrimSpace(media.Example.(string)), "\n\n") {
		if part == ":" {
			continue
		}
		name, data, _ := strings.Cut(part, "\n")
		event, data := strings.TrimPrefix(name, "event: "), strings.TrimPrefix(data, "data: ")
		apitest.CheckEvent(t, method, path, event, []byte(data))
		delete(missing, event)
	}
	for event := range missing {
		t.Errorf("%s %s: the example has no %s", method, path, event)
	}
}

// verbAndNoun: generators make functions of these names, and some put those of all tags
// into one class.
var verbAndNoun = regexp.MustCompile("^[a-z]+([A-Z][a-z]+)+$")

func TestEveryOperationIsDescribed(t *testing.T) {
	seen := make(map[string]bool)
	for path, item := range load(t).Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.Summary == "" || operation.OperationID == "" || seen[operation.OperationID] {
				t.Errorf("%s %s needs a summary and an id of its own", method, path)
			}
			if !verbAndNoun.MatchString(operation.OperationID) {
				t.Errorf("%s %s: %s is no good name of a function in a generated client", method, path, operation.OperationID)
			}
			seen[operation.OperationID] = true
			if operation.Responses.Default() == nil {
				t.Errorf("%s %s has no default answer", method, path)
			}
		}
	}
}

func load(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.Document)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// Answers and events contain a member without a value as null, and never leave it out: what a schema of
// theirs names is required.
func TestAnswersLeaveNothingOut(t *testing.T) {
	for name, schema := range load(t).Components.Schemas {
		if strings.HasSuffix(name, "Request") {
			continue
		}
		required := requiredOf(schema.Value)
		for property := range schema.Value.Properties {
			if !slices.Contains(required, property) {
				t.Errorf("%s may be without %s", name, property)
			}
		}
	}
}

func requiredOf(schema *openapi3.Schema) []string {
	required := slices.Clone(schema.Required)
	for _, part := range schema.AllOf {
		required = append(required, requiredOf(part.Value)...)
	}
	return required
}
