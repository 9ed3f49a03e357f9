package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose.yaml is right by the schema of the Compose Specification. Its files exist, its services depend on services
// that it has, and it publishes ports on loopback only.
func TestCompose(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{filepath.Join(repository, "compose.yaml")})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, service := range project.Services {
		for _, volume := range service.Volumes {
			if volume.Type == types.VolumeTypeBind {
				exists(t, name, volume.Source)
			}
		}
		if service.Build != nil {
			exists(t, name, service.Build.Context)
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: port %s is published on %q", name, port.Published, port.HostIP)
			}
		}
	}
	for name, secret := range project.Secrets {
		exists(t, name, secret.File)
	}
	manifests, err := os.ReadFile(filepath.Join(repository, "deploy", "sidecar.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sidecar-python", "sidecar-node", "console"} {
		if image := project.Services[name].Image; !strings.Contains(string(manifests), "image: "+image+"\n") {
			t.Errorf("%s has the image %s, deploy/sidecar.yaml has another one", name, image)
		}
	}
}

func exists(t *testing.T, service, path string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("%s: %v", service, err)
	}
}
