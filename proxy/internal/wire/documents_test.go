package wire

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/locksidecar/locksidecar/api"
)

// The code, the OpenAPI document and docs/errors.md know the same codes, and the type of a
// Problem leads to a section that says what it comes from and what to do.
func TestProblemsAreDocumented(t *testing.T) {
	sections := sectionsOf(t, "../../../docs/errors.md")
	documented := documentedCodes(t)
	for code, entry := range problems {
		section, ok := sections[code]
		if !ok || !documented[code] {
			t.Errorf("%s: in docs/errors.md %t, in api/openapi.yaml %t", code, ok, documented[code])
			continue
		}
		if !strings.HasPrefix(section, strconv.Itoa(entry.status)) {
			t.Errorf("%s: the section does not begin with its status %d", code, entry.status)
		}
		if !slices.Contains(strings.Fields(section), "**Cause:**") || !slices.Contains(strings.Fields(section), "**Remedy:**") {
			t.Errorf("%s: the section lacks cause or remedy", code)
		}
		if entry.retry != strings.Contains(strings.SplitN(section, "\n", 2)[0], "`Retry-After`") {
			t.Errorf("%s: the first line does not tell of Retry-After as it is", code)
		}
		where, anchor, _ := strings.Cut(parse(t, (&Problem{Code: code}).Append(nil))["type"].(string), "#")
		if where != "https://github.com/locksidecar/locksidecar/blob/main/docs/errors.md" || sections[anchor] != section {
			t.Errorf("%s: the type leads to %s#%s", code, where, anchor)
		}
	}
	for code := range sections {
		if _, ok := problems[code]; !ok {
			t.Errorf("docs/errors.md tells of %s, which nobody sends", code)
		}
	}
	for code := range documented {
		if _, ok := problems[code]; !ok {
			t.Errorf("api/openapi.yaml tells of %s, which nobody sends", code)
		}
	}
}

var heading = regexp.MustCompile("(?m)^## `?([^`\n]+)`?\n+")

// sectionsOf reads the sections of a file of Markdown by the anchors of their headings, which
// are single words.
func sectionsOf(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	sections := make(map[string]string)
	found := heading.FindAllSubmatchIndex(text, -1)
	for i, at := range found {
		end := len(text)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		sections[string(text[at[2]:at[3]])] = string(text[at[1]:end])
	}
	return sections
}

// documentedCodes are the codes for which the OpenAPI document has a schema.
func documentedCodes(t *testing.T) map[string]bool {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.Document)
	if err != nil {
		t.Fatal(err)
	}
	codes := make(map[string]bool)
	for name, schema := range doc.Components.Schemas {
		if code := schema.Value.Properties["code"]; code != nil && strings.HasSuffix(name, "Problem") && code.Value.Const != nil {
			codes[code.Value.Const.(string)] = true
		}
	}
	return codes
}
