package image

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestImage: the image has what it needs to run, and nothing else.
// Proves: threat inside the sidecar
func TestImage(t *testing.T) {
	image := native(t)
	config := image.Config.Config
	if config.User != "65532:65532" {
		t.Errorf("user %q, want 65532:65532: a number, so that runAsNonRoot can be checked", config.User)
	}
	if !slices.Equal(config.Entrypoint, []string{"/locksidecar"}) || !slices.Equal(config.Cmd, []string{"serve"}) {
		t.Errorf("entrypoint %q, command %q, want locksidecar, which serves unless it is told something else", config.Entrypoint, config.Cmd)
	}
	if len(config.Volumes)+len(config.Ports) > 0 {
		t.Errorf("volumes %v, ports %v: the pod says what it wants", config.Volumes, config.Ports)
	}
	if config.Folder != "" && config.Folder != "/" || config.StopSignal != "" {
		t.Errorf("folder %q, stop signal %q: it stops by SIGTERM", config.Folder, config.StopSignal)
	}
	for _, variable := range config.Env {
		if !strings.HasPrefix(variable, "PATH=") {
			t.Errorf("the image sets %s: what the sidecar does is the pod's to say", variable)
		}
	}
	// As in release/build-image.sh: git answers only the owner of the checkout.
	revision := command(t, "sh", "-c", "git rev-parse HEAD 2>/dev/null || echo unknown")
	for label, want := range map[string]string{
		"title": "locksidecar", "source": "https://github.com/locksidecar/locksidecar", "licenses": "Apache-2.0",
		"version": version, "revision": revision, "description": "",
	} {
		got := config.Labels["org.opencontainers.image."+label]
		if got == "" || want != "" && got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	checkFiles(t, image.tree(t), runtime.GOARCH)
}

// TestOtherArchitecture builds for the machine that this one is not.
func TestOtherArchitecture(t *testing.T) {
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	image := build(t, "linux/"+other, "localhost/locksidecar-"+other)
	if image.Config.Architecture != other {
		t.Errorf("the image is for %s, want %s", image.Config.Architecture, other)
	}
	checkFiles(t, image.tree(t), other)
}

func checkFiles(t *testing.T, root, arch string) {
	t.Helper()
	want := []string{
		"drwxr-xr-x 0:0 etc",
		"drwxr-xr-x 0:0 etc/ssl",
		"drwxr-xr-x 0:0 etc/ssl/certs",
		"-rw-r--r-- 0:0 etc/ssl/certs/ca-certificates.crt",
		"drwxr-xr-x 0:0 licenses",
		"-rw-r--r-- 0:0 licenses/LICENSES.gz",
		"-rwxr-xr-x 0:0 locksidecar",
		"drwxr-xr-x 0:0 run",
		"drwxr-xr-x 65532:65532 run/locksidecar",
	}
	var got []string
	var size int64
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			size += info.Size()
		}
		owner := info.Sys().(*syscall.Stat_t)
		got = append(got, fmt.Sprintf("%s %d:%d %s", info.Mode(), owner.Uid, owner.Gid, strings.TrimPrefix(path, root+"/")))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("files of the image:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	t.Logf("%s: %d bytes", arch, size)
	if !x509.NewCertPool().AppendCertsFromPEM(content(t, filepath.Join(root, "etc", "ssl", "certs", "ca-certificates.crt"))) {
		t.Error("the file of CA certificates has none")
	}
	compressed, err := gzip.NewReader(bytes.NewReader(content(t, filepath.Join(root, "licenses", "LICENSES.gz"))))
	if err != nil {
		t.Fatal(err)
	}
	licences, err := io.ReadAll(compressed)
	own := content(t, filepath.Join(repository, "LICENSE"))
	if err != nil || !bytes.HasPrefix(licences, own) || !bytes.Contains(licences, []byte("\ngithub.com/jackc/pgx/v5 ")) {
		t.Errorf("the licences lack our own, or that of the database's driver: %d bytes, %v", len(licences), err)
	}
	checkBinary(t, filepath.Join(root, "locksidecar"), arch)
}

// checkBinary wants a file for the architecture that needs no other file.
func checkBinary(t *testing.T, path, arch string) {
	t.Helper()
	binary, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = binary.Close() }()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; binary.Machine != want {
		t.Errorf("the binary is for %s, want %s", binary.Machine, want)
	}
	for _, part := range binary.Progs {
		if part.Type == elf.PT_INTERP || part.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary is not static: it has a %s", part.Type)
		}
	}
}

// TestReproducible: the same sources make the same image, and its binary is the one that
// `make build` makes.
// Proves: threat build inputs
func TestReproducible(t *testing.T) {
	first := native(t)
	if again := build(t, "linux/"+runtime.GOARCH, "localhost/locksidecar-again"); again.ID != first.ID {
		t.Errorf("image %s, built again %s", first.ID, again.ID)
	}

	// The files carry their date: no builder needs a flag for the same layer.
	flags, err := baseFlags()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{
		"build", "--pull=never", "--quiet", "-t", "localhost/locksidecar-plain", "--build-arg", "VERSION=" + version,
		"--build-arg", "GO_IMAGE=" + baseImage, "--build-arg", "BUILDPLATFORM=linux/" + runtime.GOARCH,
		"--build-arg", "SOURCE_DATE_EPOCH=" + epoch, "--build-arg", "GOPROXY=off",
	}, strings.Fields(flags)...)
	command(t, "buildah", append(args, ".")...)
	if plain := look(t, "localhost/locksidecar-plain"); !slices.Equal(plain.Config.Rootfs.Layers, first.Config.Rootfs.Layers) {
		t.Errorf("layers %s, built without --timestamp %s", first.Config.Rootfs.Layers, plain.Config.Rootfs.Layers)
	}

	binary := filepath.Join(t.TempDir(), "locksidecar")
	command(t, "make", "build", "VERSION="+version, "BINARY="+binary)
	if !bytes.Equal(content(t, binary), content(t, filepath.Join(first.tree(t), "locksidecar"))) {
		t.Error("the image's binary is another one than that of `make build`")
	}
}

func content(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
