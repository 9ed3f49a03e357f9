package bearer

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/logtest"
)

var one, two, three = strings.Repeat("1", 32), strings.Repeat("2", 32), strings.Repeat("3", 32)

// write replaces a file of tokens, as the kubelet does.
func write(t *testing.T, file, content string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// Proves: threat tcp
func TestMatch(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, one+"\n"+two+"\r\n\n", 0o600)
	tokens, err := Load(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]bool{
		"Bearer " + one: true, "Bearer " + two: true, "bearer " + one: true,
		"Bearer " + three: false, "Bearer " + one[1:]: false, "Bearer " + one + "1": false, "Bearer " + one + "\n" + two: false,
		"Bearer": false, "Bearer" + " ": false, "": false, one: false, " " + one: false, "Basic " + one: false, "Bearer  " + one: false,
	} {
		if tokens.Match([]byte(header)) != want {
			t.Errorf("%q: %t", header, !want)
		}
	}
}

func TestLoadsNoTokens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	for name, content := range map[string]string{
		"empty": "", "lines": "\n\n", "short": one[1:], "long": strings.Repeat("1", 513), "three": one + "\n" + two + "\n" + three,
		"spaces": one + " " + two, "odd": one + "é", "one is short": one + "\n" + two[1:],
	} {
		write(t, file, content, 0o600)
		_, err := Load(file, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "111") || strings.Contains(err.Error(), "222") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A token is replaced without a restart: the new one is added, then the old one is removed. A file that cannot be used changes nothing.
// Proves: threat tcp
func TestRotation(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, one, 0o600)
	log := &logtest.Log{}
	tokens, err := Load(file, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tokens.now.Every = 0
	match := func(wanted ...bool) {
		t.Helper()
		for i, token := range []string{one, two, three} {
			if tokens.Match([]byte("Bearer "+token)) != wanted[i] {
				t.Errorf("token %d: %t", i+1, !wanted[i])
			}
		}
	}
	match(true, false, false)
	write(t, file, one+"\n"+two, 0o600)
	match(true, true, false)
	write(t, file, two, 0o600)
	match(false, true, false)
	write(t, file, "", 0o600)
	match(false, true, false)
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	match(false, true, false)
	write(t, file, three, 0o644)
	match(false, true, false)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	match(false, true, false)
	write(t, file, three, 0o640)
	match(false, false, true)
	text := log.String()
	for _, said := range []string{"there are 0 tokens", "every user of the machine may use", "no such file"} {
		if strings.Count(text, said) != 1 {
			t.Errorf("%q is not said once:\n%s", said, text)
		}
	}
	if strings.Contains(text, one) || strings.Contains(text, two) || strings.Contains(text, three) {
		t.Errorf("the log shows a token:\n%s", text)
	}
}
