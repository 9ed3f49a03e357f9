package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// decode reads the document's value, as kubectl does: YAML becomes JSON first. Numbers of JSON stay as
// written, those of YAML become integers of 64 bits or a float64 (1e3 is 1000, longer ones lose
// digits). Errors are a key that stands twice, and aliases that multiply (refused by the library).
func (d document) decode() (any, error) {
	asJSON := []byte(d.body)
	if !d.isJSON {
		var err error
		if asJSON, err = yamlToJSON(d.body); err == nil {
			err = oneValue(d.body)
		}
		if err != nil {
			return nil, d.placed(err)
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	return decodeJSON(decoder)
}

// notMerged is a key like any other, with as many runes as the one that merges: <<.
const notMerged = "<\ue000"

// yamlToJSON refuses a key that stands twice in a map. The library's strict mode also refuses a key
// that is merged and set beside it, which kubectl takes: so it looks again without merges.
func yamlToJSON(body string) ([]byte, error) {
	asJSON, err := yaml.YAMLToJSONStrict([]byte(body))
	if _, twice := errors.AsType[*goyaml.TypeError](err); !twice {
		return asJSON, err
	}
	var value any
	again := goyaml.UnmarshalStrict([]byte(strings.ReplaceAll(body, "<<", notMerged)), &value)
	if own, ok := errors.AsType[*goyaml.TypeError](again); ok {
		own.Errors = slices.DeleteFunc(own.Errors, func(text string) bool {
			return strings.HasSuffix(text, fmt.Sprintf("key %#v already set in map", notMerged)) // many merges
		})
		for i, text := range own.Errors {
			own.Errors[i] = strings.ReplaceAll(text, `<\ue000`, "<<")
		}
		if len(own.Errors) > 0 {
			return nil, own
		}
	}
	return yaml.YAMLToJSON([]byte(body))
}

// oneValue makes sure that the library drops nothing after the first value: splitYAML does not know all
// line ends of YAML 1.1.
func oneValue(body string) error {
	decoder := goyaml.NewDecoder(strings.NewReader(body))
	var value any
	if err := decoder.Decode(&value); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := decoder.Decode(&value); !errors.Is(err, io.EOF) {
		return errors.Join(errors.New("more follows the document, without a line ---"), err)
	}
	return nil
}

// decodeJSON reads a value, and refuses a repeated key. encoding/json's scanner bounds the depth.
func decodeJSON(decoder *json.Decoder) (any, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	var value any = token
	switch token {
	case json.Delim('{'):
		o := object{}
		for decoder.More() {
			key, err := decoder.Token()
			if err != nil {
				return nil, err
			}
			name, _ := key.(string)
			if _, twice := o[name]; twice {
				return nil, fmt.Errorf("the key %q stands twice in an object", name)
			}
			if o[name], err = decodeJSON(decoder); err != nil {
				return nil, err
			}
		}
		value = o
	case json.Delim('['):
		l := list{}
		for decoder.More() {
			element, err := decodeJSON(decoder)
			if err != nil {
				return nil, err
			}
			l = append(l, element)
		}
		value = l
	default:
		return value, nil
	}
	_, err = decoder.Token() // the closing bracket
	return value, err
}

// encode gives the document another value. Only the comments in front are kept.
func (d document) encode(value any) (document, error) {
	if d.isJSON {
		var text strings.Builder
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "    ") // as kubectl does
		err := encoder.Encode(value)
		d.body = strings.TrimSuffix(text.String(), "\n")
		return d, err
	}
	text, err := yaml.Marshal(value)
	d.body = string(text)
	if d.head != "" && !strings.HasSuffix(d.head, "\n") {
		d.head += "\n"
	}
	return d, err
}

var yamlLine = regexp.MustCompile(`\bline (\d+)\b`)

// quoted is where the library's errors begin to quote values: those of a Secret must not be logged.
var quoted = regexp.MustCompile(`(?s)(invalid map key|unsupported map key|cannot decode !!\w+).*`)

// placed counts an error's lines from the beginning of the file.
func (d document) placed(err error) error {
	text := quoted.ReplaceAllString(err.Error(), "$1 (not shown)")
	return errors.New(yamlLine.ReplaceAllStringFunc(text, func(text string) string {
		line, convErr := strconv.Atoi(strings.TrimPrefix(text, "line "))
		if convErr != nil {
			return text
		}
		return fmt.Sprintf("line %d", d.line+line-1)
	}))
}
