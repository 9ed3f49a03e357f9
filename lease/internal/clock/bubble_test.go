package clock_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVirtualTimeHasItsOwnClock: no test under virtual time uses the clock of the machine. On a busy machine it would lose leases, but seldom.
func TestVirtualTimeHasItsOwnClock(t *testing.T) {
	const root = "../../.."
	bubbles := 0
	for _, room := range []string{"lease", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "bubble_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			code := string(text)
			if err != nil || !strings.Contains(code, "synctest.Test(") && !strings.HasSuffix(path, "roomtest.go") {
				return err
			}
			bubbles++
			without := strings.Contains(code, "lease.New(") && !strings.Contains(code, "Clock:") // then it is the machine's
			if strings.Contains(code, "clock.System") || without {
				t.Errorf("%s: its clock is the machine's; use clocktest.Bubble", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if bubbles < 50 {
		t.Fatalf("%d files with tests under virtual time were found: is this the right folder?", bubbles)
	}
}
