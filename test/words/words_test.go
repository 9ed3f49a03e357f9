// Package words holds the tree to its vocabulary: one word for one thing, and the field's word where
// there is one (CONTRIBUTING.md, "Words").
package words

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// old are words that are not used any more, and what is said instead.
var old = []struct{ word, instead string }{
	{`bur(y|ies|ied|ying|ial|ials)`, "revoke (an own lease) or reap (an expired one)"},
	{`graves?`, "what is to be reaped"},
	{`bids?`, "attempt"},
	{`grant ids?|GrantID`, "attempt id"},
	{`rid(e|es|ing) on|riders?`, "held under"},
	{`strays?|suspects?`, "orphans or candidates"},
	{`disown(s|ed)?`, "withdraw"},
	{`recount(s|ed|ing)?`, "reconcile"},
	{`hush|mouths?|tellers?`, "subscriber, linger, notifier"},
	{`untold`, "undelivered"},
	{`loosen(s|ed)?`, "in flight, begin cleanup"},
	{`undo(es|ne|ing|s)?`, "withdraw, or roll back in a database"},
	{`giv(e|es|en|ing) back|gave back|giveBack`, "hand back"},
	{`NotJudged|stuck (row|key|item)s?`, "row locked"},
	{`denials?`, "held cache"},
	{`tally|tallies`, "metrics or stats"},
}

// elsewhere are lines in which such a word means something else.
var elsewhere = regexp.MustCompile(`monkeypatch\.undo|place is given back|stuck at "STUCK"`)

// skipped are folders of others' files, and files that are the logs of runs.
var skipped = []string{".git", "node_modules", ".venv", "bin", ".bin", "dist", "build", "testdata", "__pycache__"}

func TestWords(t *testing.T) {
	const top = "../.."
	words := make([]*regexp.Regexp, len(old))
	all := make([]string, len(old))
	for i, o := range old {
		words[i] = regexp.MustCompile(`(?i)\b(` + o.word + `)\b`)
		all[i] = o.word
	}
	anyWord := regexp.MustCompile(`(?i)\b(` + strings.Join(all, "|") + `)\b`)
	files := 0
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if slices.Contains(skipped, d.Name()) || strings.HasSuffix(d.Name(), ".egg-info") {
				return fs.SkipDir
			}
			return nil
		case !slices.Contains([]string{".go", ".sql", ".md", ".yaml", ".py", ".ts", ".mjs", ".sh", ".patch"}, filepath.Ext(path)),
			d.Name() == "words_test.go", filepath.Base(filepath.Dir(path)) == "bench" && filepath.Ext(path) == ".md": // what runs have printed
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		if !anyWord.Match(text) { // one pass over a text, not one for each word
			return nil
		}
		for n, line := range bytes.Split(text, []byte("\n")) {
			for i, w := range words {
				if found := w.Find(line); found != nil && !elsewhere.Match(line) {
					t.Errorf("%s:%d: %q: say %s", path, n+1, found, old[i].instead)
				}
			}
		}
		return nil
	})
	if err != nil || files < 300 {
		t.Fatalf("%d files read: %v", files, err)
	}
}
