package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/locksidecar/locksidecar/api"
)

// location names the document inside the schema compiler.
const location = "openapi.json"

// document is the OpenAPI document, prepared for validation.
type document struct {
	root map[string]any

	mu       sync.Mutex
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema
}

// load reads the document once for the whole test binary.
var load = sync.OnceValues(func() (*document, error) {
	root, err := decode(api.Document)
	if err != nil {
		return nil, err
	}
	d := &document{root: root, compiled: make(map[string]*jsonschema.Schema)}
	d.makeStrict()
	d.compiler = jsonschema.NewCompiler()
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource(location, d.root); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	return d, nil
})

// decode converts YAML to the Go values that the schema compiler expects.
func decode(text []byte) (map[string]any, error) {
	var fromYAML any
	if err := yaml.Unmarshal(text, &fromYAML); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	encoded, err := json.Marshal(fromYAML)
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	return value.(map[string]any), nil
}

// at follows a path of member names, and each $ref on it.
func (d *document) at(pointer ...string) (node map[string]any, where []string) {
	node = d.root
	for _, name := range pointer {
		next, ok := node[name].(map[string]any)
		if !ok {
			return nil, nil
		}
		node, where = next, append(where, name)
		if ref, ok := node["$ref"].(string); ok {
			node, where = d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
		}
	}
	return node, where
}

// validate checks a JSON value against the schema at a pointer.
func (d *document) validate(value []byte, pointer []string) error {
	decoded, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	schema, err := d.compile(pointer)
	if err != nil {
		return err
	}
	return schema.Validate(decoded)
}

func (d *document) compile(pointer []string) (*jsonschema.Schema, error) {
	escape := strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D")
	names := make([]string, len(pointer))
	for i, name := range pointer {
		names[i] = "/" + escape.Replace(name)
	}
	url := location + "#" + strings.Join(names, "")
	d.mu.Lock()
	defer d.mu.Unlock()
	if schema, ok := d.compiled[url]; ok {
		return schema, nil
	}
	schema, err := d.compiler.Compile(url)
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	d.compiled[url] = schema
	return schema, nil
}

// makeStrict forbids members that the document does not name. The document allows them, because
// clients must ignore unknown members. But the server must not send undocumented ones.
func (d *document) makeStrict() {
	schemas, _ := d.at("components", "schemas")
	for _, schema := range schemas {
		d.strict(schema, false)
	}
	d.strictContents(d.root)
}

// strictContents finds the schemas of all bodies and events.
func (d *document) strictContents(node any) {
	switch node := node.(type) {
	case map[string]any:
		for name, child := range node {
			switch name {
			case "schemas", "example", "examples":
			case "schema":
				d.strict(child, true)
			case "x-events":
				for _, schema := range child.(map[string]any) {
					d.strict(schema, true)
				}
			default:
				d.strictContents(child)
			}
		}
	case []any:
		for _, child := range node {
			d.strictContents(child)
		}
	}
}

// strict closes a schema and those below it. whole means that the schema alone describes a value: a
// part of an allOf also sees members of the other parts.
func (d *document) strict(node any, whole bool) {
	schema, ok := node.(map[string]any)
	if !ok {
		return
	}
	if whole && d.hasProperties(schema) {
		schema["unevaluatedProperties"] = false
	}
	properties, _ := schema["properties"].(map[string]any)
	for _, child := range properties {
		d.strict(child, true)
	}
	d.strict(schema["items"], true)
	for _, branch := range []string{"anyOf", "oneOf"} {
		d.strictAll(schema[branch], whole)
	}
	d.strictAll(schema["allOf"], false)
}

func (d *document) strictAll(node any, whole bool) {
	list, _ := node.([]any)
	for _, child := range list {
		d.strict(child, whole)
	}
}

func (d *document) hasProperties(schema map[string]any) bool {
	if ref, ok := schema["$ref"].(string); ok {
		schema, _ = d.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
	}
	if _, ok := schema["properties"]; ok {
		return true
	}
	for _, kind := range []string{"allOf", "anyOf", "oneOf"} {
		parts, _ := schema[kind].([]any)
		for _, part := range parts {
			if part, ok := part.(map[string]any); ok && d.hasProperties(part) {
				return true
			}
		}
	}
	return false
}
