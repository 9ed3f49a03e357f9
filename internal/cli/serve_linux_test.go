package cli

import (
	"os"
	"os/exec"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// A log on a terminal is for people, unless a variable says how it is written.
func TestLogOnATerminal(t *testing.T) {
	for format, want := range map[string]string{"": "level=INFO msg=ready", "json": `"msg":"ready"`} {
		cmd := exec.Command(os.Args[0], "--socket", sidecartest.Socket(t), "serve")
		cmd.Env = append(os.Environ(), "TERM=xterm", "LOCKSIDECAR_LOG_FORMAT="+format)
		shown, _ := onTerminal(t, cmd, 24)
		shown.Await(t, want)
	}
}
