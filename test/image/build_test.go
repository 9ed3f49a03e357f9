package image

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	repository = "../.."
	version    = "v0.0.0-image"
	// epoch is the date of the sources, for builds that shall be the same.
	epoch     = "1700000000"
	baseImage = "localhost/locksidecar-go"
)

// openStorage gives buildah a storage in the folder: the user's own is not touched. The
// driver "vfs" copies, and needs nothing of the kernel.
func openStorage(folder string) error {
	conf := filepath.Join(folder, "storage.conf")
	text := fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n",
		filepath.Join(folder, "storage"), filepath.Join(folder, "run"))
	for name, value := range map[string]string{
		"CONTAINERS_STORAGE_CONF": conf, "BUILDAH_ISOLATION": "chroot",
		// The tests may run below a make, whose flags and files are not ours.
		"MAKEFLAGS": "", "MAKELEVEL": "", "SOURCE_DATE_EPOCH": epoch,
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return os.WriteFile(conf, []byte(text), 0o600)
}

// command runs a program in the repository's folder and returns what it printed.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := inRepository(name, args...)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, &errors)
	}
	return strings.TrimSpace(string(out))
}

// inRepository keeps buildah's caches in our folder, too.
func inRepository(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = repository
	cmd.Env = append(os.Environ(), "TMPDIR="+os.Getenv(privateEnv))
	return cmd
}

// baseFlags makes the base image, once, and returns the flags for its use.
var baseFlags = sync.OnceValues(func() (string, error) {
	out, err := inRepository("test/image/base.sh", baseImage).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("base.sh: %w\n%s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
})

// build builds the image as anybody does, but from the local base and without a network.
func build(t *testing.T, platform, name string) built {
	t.Helper()
	flags, err := baseFlags()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	command(t, "make", "image", "BUILDER=buildah", "IMAGE="+name, "PLATFORM="+platform, "VERSION="+version,
		"GO_IMAGE="+baseImage, "GOPROXY=off", "BUILD_FLAGS="+flags)
	t.Logf("%s: built in %s", platform, time.Since(began).Round(100*time.Millisecond))
	return look(t, name)
}

// built is an image as buildah shows it.
type built struct {
	name   string
	ID     string `json:"FromImageID"`
	Config struct {
		Architecture string `json:"architecture"`
		Config       struct {
			User       string            `json:"User"`
			Entrypoint []string          `json:"Entrypoint"`
			Cmd        []string          `json:"Cmd"`
			Env        []string          `json:"Env"`
			Folder     string            `json:"WorkingDir"`
			StopSignal string            `json:"StopSignal"`
			Ports      map[string]any    `json:"ExposedPorts"`
			Volumes    map[string]any    `json:"Volumes"`
			Labels     map[string]string `json:"Labels"`
		} `json:"config"`
		Rootfs struct {
			Layers []string `json:"diff_ids"`
		} `json:"rootfs"`
	} `json:"OCIv1"`
}

func look(t *testing.T, name string) built {
	t.Helper()
	b := built{name: name}
	if err := json.Unmarshal([]byte(command(t, "buildah", "inspect", "--type", "image", name)), &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// tree copies the image's files to a folder, as a runtime does for a container.
func (b built) tree(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	container := command(t, "buildah", "from", "--pull=never", "--arch", b.Config.Architecture, b.name)
	defer command(t, "buildah", "rm", container)
	command(t, "cp", "-a", command(t, "buildah", "mount", container), root)
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	return root
}

// native is the image for this machine, built once.
func native(t *testing.T) built {
	t.Helper()
	const name = "localhost/locksidecar-native"
	nativeOnce.Do(func() { build(t, "linux/"+runtime.GOARCH, name) })
	return look(t, name)
}

var nativeOnce sync.Once
