package config

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The table of variables in the README has each one that is read, with its default, and no other.
func TestTheTableOfVariables(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\|(.*?)\\|").FindAllStringSubmatch(string(text), -1) {
		told[row[1]] = strings.TrimSpace(row[2])
	}
	for field := range reflect.TypeFor[raw]().Fields() {
		name, value, hasDefault := strings.Cut(field.Tag.Get("env"), ",default=")
		if is, ok := told[name]; !ok || hasDefault && is != "`"+value+"`" {
			t.Errorf("%s, whose default is %q: the README has %q", name, value, is)
		}
		delete(told, name)
	}
	for name := range told {
		t.Errorf("the README has %s, which is not read", name)
	}
}
