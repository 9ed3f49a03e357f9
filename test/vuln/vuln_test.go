// Package vuln tests what `make vuln` says when it can know nothing. `make vuln` plants a
// vulnerable module, and so tests by itself that it finds something.
package vuln

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestUnreachable: a database that cannot be asked is a failure, and never a silent one.
// Proves: threat build inputs
func TestUnreachable(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for _, database := range []string{"http://127.0.0.1:1", other.URL, "file:///nowhere"} {
		cmd := exec.Command("make", "--no-print-directory", "-C", "../..", "vuln", "VULN_DB="+database)
		cmd.Env = append(os.Environ(), "MAKEFLAGS=", "no_proxy=*") // nothing of the make that runs this test
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "vulnerabilities: not checked: "+database+": curl: ") {
			t.Errorf("%s: %v\n%s", database, err, out)
		}
	}
}
