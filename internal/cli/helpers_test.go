package cli

import (
	"bytes"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// served is a sidecar to run commands against.
type served struct{ *sidecartest.Sidecar }

// serve starts a sidecar and waits until it is ready.
func serve(t *testing.T, env map[string]string) served {
	t.Helper()
	return served{sidecartest.Start(t, env, "msg=ready")}
}

// command runs a command line against the sidecar.
func (in served) command(args ...string) (stdout string, err error) {
	return command(append([]string{"--socket", in.Socket}, args...)...)
}

func command(args ...string) (stdout string, err error) {
	var out, errOut bytes.Buffer
	err = execute(&app{source: config.FromMap(nil)}, args, &out, &errOut)
	return out.String(), err
}
