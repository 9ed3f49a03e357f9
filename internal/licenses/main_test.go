package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// Everything that is linked has a licence that is allowed, and the text names it.
// Proves: threat build inputs
func TestLinkedLicencesAreAllowed(t *testing.T) {
	modules, err := linked(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(modules) < 40 {
		t.Errorf("only %d modules", len(modules))
	}
	text, err := texts(modules)
	if err != nil {
		t.Error(err)
	}
	for _, m := range modules {
		if !bytes.Contains(text, []byte("\n"+m.name+"\n")) {
			t.Errorf("the text does not name %s", m.name)
		}
	}
}

func TestModulesWithoutAllowedLicenceAreRefused(t *testing.T) {
	mit := allowed["MIT"]
	for _, test := range []struct{ name, file, text, want string }{
		{"none", "README", mit, "has no licence"},
		{"a notice alone", "NOTICE", mit, "has no licence"},
		{"source alone", "license.go", mit, "has no licence"},
		{"unknown", "LICENSE", "All rights reserved.", "none of the allowed ones"},
		{"copyleft", "COPYING", "GNU GENERAL PUBLIC LICENSE\n  Version 3", "not allowed"},
		{"copyleft beside an allowed one", "LICENSE", mit + "\n\nGNU AFFERO GENERAL\nPUBLIC LICENSE", "not allowed"},
		{"a condition that is added", "LICENSE.md", mit + "\nThe Software shall be used for Good, not Evil.", "not allowed"},
		{"allowed", "LICENCE.txt", strings.ReplaceAll(mit, " ", "\n  "), ""},
	} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, test.file), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := texts(map[string]module{"m": {name: "example.com/m v1.0.0", folder: folder, folders: map[string]bool{folder: true}}})
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}

// A licence of a linked package counts besides the module's own.
func TestLicencesOfPackagesCount(t *testing.T) {
	root := t.TempDir()
	inner := filepath.Join(root, "internal", "copied")
	if err := os.MkdirAll(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{filepath.Join(root, "LICENSE"): allowed["MIT"], filepath.Join(inner, "LICENSE"): allowed["BSD"]} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := module{name: "m", folder: root, folders: map[string]bool{inner: true}}
	text, err := texts(map[string]module{"m": m})
	if err != nil || !bytes.Contains(text, []byte(allowed["MIT"])) || !bytes.Contains(text, []byte(allowed["BSD"])) {
		t.Errorf("%v\n%s", err, text)
	}
}
