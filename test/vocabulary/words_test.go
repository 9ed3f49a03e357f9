package vocabulary

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The clients have the words of their languages: see TestVocabulary. The others are not read, or have the words as examples.
var notRead = []string{".git", ".bin", "node_modules", "clients", "site", "test/mutants", "test/campaign", "test/vocabulary"}

// TestWords: the code does not use the words that CONTRIBUTING.md replaces, neither in comments nor as a part of a name. make prose looks for
// them in the documents. Reading alone does not keep them out: the test was once taken away for a day, and new code had such names again.
func TestWords(t *testing.T) {
	text, err := os.ReadFile(top + "site/vale/Plain/Words.yml")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Swap map[string]string `yaml:"swap"`
	}
	if err := yaml.Unmarshal(text, &list); err != nil || len(list.Swap) < 8 {
		t.Fatalf("%d words: %v", len(list.Swap), err)
	}
	var words []string
	for word := range list.Swap {
		words = append(words, word)
	}
	slices.Sort(words)
	unwanted := regexp.MustCompile(`(?i)\b(` + strings.Join(words, "|") + `)\b`)
	inName := regexp.MustCompile(`([a-z0-9])([A-Z])|_`) // the parts of a name become words
	files := 0
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(filepath.ToSlash(path), top)
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(notRead, name):
			return fs.SkipDir
		case d.IsDir() || !slices.Contains([]string{".go", ".sql", ".lua"}, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for n, line := range strings.Split(string(text), "\n") {
			if word := unwanted.FindString(inName.ReplaceAllString(line, "$1 $2")); word != "" {
				t.Errorf("%s:%d: %q is not a word of this project: see Words and sentences in CONTRIBUTING.md", name, n+1, word)
			}
		}
		return nil
	})
	if err != nil || files < 500 {
		t.Errorf("%d files: %v", files, err)
	}
}
