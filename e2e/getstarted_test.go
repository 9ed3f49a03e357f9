package e2e

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFirstSteps: the answers that README.md and docs/get-started.md print have the members of today's answers, in
// their order. The values differ from run to run.
func TestFirstSteps(t *testing.T) {
	t.Parallel()
	for page, answers := range map[string]int{"README.md": 1, "docs/get-started.md": 6} {
		text, err := os.ReadFile("../" + page)
		if err != nil {
			t.Fatal(err)
		}
		compared := 0
		var s *sidecar
		for _, b := range consoles(string(text)) {
			steps := slices.DeleteFunc(b.steps, func(s step) bool { return len(s.output) != 1 || s.output[0][0] != '{' })
			for i, step := range steps {
				if i == 0 && strings.HasPrefix(step.output[0], `{"granted":`) { // no key of the blocks before is held
					s = start(t, options{"STORE_URL": "memory://"})
				}
				want, got := jsonNames(step.output[0]), jsonNames(s.answerTo(step.command))
				if !slices.Equal(got, want) {
					t.Errorf("%s: %s\nprints the members %q,\nthe page has       %q", page, step.command, got, want)
				}
				compared++
			}
		}
		if compared != answers {
			t.Errorf("%s: %d answers were compared, not %d: the test reads the page wrongly", page, compared, answers)
		}
	}
}

var memberName = regexp.MustCompile(`"(\w+)":`)

func jsonNames(answer string) (names []string) {
	for _, found := range memberName.FindAllStringSubmatch(answer, -1) {
		names = append(names, found[1])
	}
	return names
}

var socketOfThePage = regexp.MustCompile(`--unix-socket \S+`)

// answerTo runs a page's curl with this sidecar's socket.
func (s *sidecar) answerTo(curl string) string {
	s.t.Helper()
	command := socketOfThePage.ReplaceAllString(curl, "--silent --unix-socket "+s.socket)
	out, err := exec.Command("sh", "-c", command).Output()
	if err != nil {
		s.t.Fatalf("%s: %v", command, err)
	}
	return string(out)
}
