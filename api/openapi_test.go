package api_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/locksidecar/locksidecar/api"
	"github.com/locksidecar/locksidecar/api/apitest"
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
			response := operation.Responses.Value("200")
			media := response.Value.Content.Get("application/json")
			if media == nil {
				continue
			}
			if media.Example == nil {
				t.Errorf("%s %s has no example", method, path)
				continue
			}
			header := http.Header{"Content-Type": {"application/json"}}
			apitest.Check(t, method, path, 200, header, encode(t, media.Example))
		}
	}
}

func TestEveryOperationIsDescribed(t *testing.T) {
	seen := make(map[string]bool)
	for path, item := range load(t).Paths.Map() {
		for method, operation := range item.Operations() {
			if operation.Summary == "" || operation.OperationID == "" || seen[operation.OperationID] {
				t.Errorf("%s %s needs a summary and an id of its own", method, path)
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
