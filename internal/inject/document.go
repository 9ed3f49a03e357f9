package inject

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// document is one of a stream. mark followed by body are its bytes.
type document struct {
	file         string
	number, line int // both from 1
	// mark is "---" or "...", empty only for the first of a file.
	mark, body string

	value  any
	isJSON bool
}

// marks finds the lines of YAML that end a document. Texts and comments cannot begin a line like this.
func marks(text string) (at []int) {
	from := 0
	for line := range strings.Lines(text) {
		if begin := strings.TrimRight(line[:min(len(line), len("--- "))], "\t\n\f\r "); begin == "---" || begin == "..." {
			at = append(at, from)
		}
		from += len(line)
	}
	return at
}

// split cuts a file into documents, which together are the file, byte for byte.
func split(file File) []document {
	var found []document
	text, number, line := string(file.Content), 0, 1
	from, body := 0, 0
	for _, at := range append(marks(text), len(text)) {
		d := document{file: file.Name, line: line, mark: text[from:body], body: text[body:at]}
		if !d.isEmpty() {
			number++
		}
		d.number = number
		found = append(found, d)
		line += strings.Count(d.body, "\n")
		from, body = at, at+len("---")
	}
	return found
}

// isEmpty reports whether a document has only comments and directives.
func (d *document) isEmpty() bool {
	for line := range strings.Lines(d.body) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

func (d *document) place() string {
	return fmt.Sprintf("%s, document %d (line %d)", d.file, d.number, d.line)
}

// decode reads the document's value as kubectl does, which converts YAML to JSON first. Numbers of JSON are
// kept as written. Those of YAML become integers of 64 bits or a float64 (1e3 is 1000, longer ones lose
// digits). The library refuses aliases that multiply.
func (d *document) decode() error {
	if d.isEmpty() {
		return nil
	}
	asJSON := []byte(d.body)
	if d.isJSON = json.Valid(asJSON); !d.isJSON {
		var err error
		if asJSON, err = yaml.YAMLToJSON(asJSON); err != nil {
			return d.placed(err)
		}
		if !d.isOne() {
			return errors.New("more follows the document, without a line ---")
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	return decoder.Decode(&d.value)
}

// isOne checks that there is only one value, because the library ignores the rest.
func (d *document) isOne() bool {
	var value any
	decoder := goyaml.NewDecoder(strings.NewReader(d.body))
	_ = decoder.Decode(&value)
	return errors.Is(decoder.Decode(&value), io.EOF)
}

// encode writes the value again, without the comments.
func (d *document) encode() error {
	var text []byte
	var err error
	if d.isJSON {
		text, err = json.MarshalIndent(d.value, "", "    ") // as kubectl does
		text = append(text, '\n')
	} else {
		text, err = yaml.Marshal(d.value)
	}
	d.body = string(text)
	if d.mark != "" {
		d.body = "\n" + d.body
	}
	return err
}

var yamlLine = regexp.MustCompile(`\bline (\d+)\b`)

// quoted matches where the library's errors begin to quote values, because a Secret's values must not be logged.
var quoted = regexp.MustCompile(`(?s)(invalid map key|unsupported map key|cannot decode !!\w+).*`)

// placed changes an error's line numbers to count from the beginning of the file.
func (d *document) placed(err error) error {
	text := quoted.ReplaceAllString(err.Error(), "$1 (not shown)")
	return errors.New(yamlLine.ReplaceAllStringFunc(text, func(text string) string {
		line, _ := strconv.Atoi(strings.TrimPrefix(text, "line "))
		return fmt.Sprintf("line %d", d.line+line-1)
	}))
}
