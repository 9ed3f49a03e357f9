package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// image is one that containerd has under a name of the manifests, so that nothing is pulled.
type image struct {
	name, file string
	program    string // of /bin or of the image, the only file in it
	user       string
	entrypoint []string
	command    []string
}

// images are those of the manifests, and of the tests' pods.
var images = []image{
	{name: "registry.k8s.io/pause:3.10", file: "pause.tar", program: "app", user: "65535:65535", entrypoint: []string{"/app", "pause"}},
	{name: "localhost/app:test", file: "app.tar", program: "app", user: "10001", entrypoint: []string{"/app"}},
	{
		name: "ghcr.io/locksidecar/locksidecar:v0.1.0", file: "locksidecar.tar", program: "locksidecar",
		user: "65532:65532", entrypoint: []string{"/locksidecar"}, command: []string{"serve"},
	},
}

// makeImages compiles the app, and makes the images.
func (m *machine) makeImages() error {
	build := exec.Command("go", "build", "-o", filepath.Join(m.folder, "app"), "./app")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	programs := map[string]string{"app": filepath.Join(m.folder, "app"), "locksidecar": abs(root + "/bin/locksidecar")}
	for _, i := range images {
		program, err := os.ReadFile(programs[i.program])
		if err != nil {
			return err
		}
		archive, err := i.archive(program)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(m.folder, i.file), archive, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// archive is the image as `docker save` writes it: one layer with the program.
func (i *image) archive(program []byte) ([]byte, error) {
	layer, err := tarball([]member{{i.program, program}})
	if err != nil {
		return nil, err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(layer))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"User": i.user, "Entrypoint": i.entrypoint, "Cmd": i.command, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum}},
	})
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": name, "RepoTags": []string{i.name}, "Layers": []string{sum + "/layer.tar"},
	}})
	if err != nil {
		return nil, err
	}
	return tarball([]member{{name, config}, {sum + "/layer.tar", layer}, {"manifest.json", manifest}})
}

type member struct {
	name    string
	content []byte
}

func tarball(members []member) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range members {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}
