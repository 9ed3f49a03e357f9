// Package release tests the scripts in release/ that decide whether a tag may be published. `make release-dry` runs the others.
package release

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"sigs.k8s.io/yaml"
)

func run(t *testing.T, folder, name string, args ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = folder
	out, err := command.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func script(t *testing.T, name string) string {
	t.Helper()
	file, err := filepath.Abs("../../release/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestVersionIsTheSameEverywhere(t *testing.T) {
	if out, err := run(t, "../..", script(t, "version.py")); err != nil || !strings.HasPrefix(out, "v") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestVersionIsWrittenEverywhere(t *testing.T) {
	tree := t.TempDir()
	if out, err := run(t, "../..", "sh", "-c",
		`git ls-files -z --cached --others --exclude-standard README.md clients compose.yaml deploy docs examples go.mod internal test/node | xargs -0 cp -P --parents --target-directory="$0"`, tree); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	version := script(t, "version.py")
	if out, err := run(t, tree, version, "v9.8.7-rc.6"); err != nil || out != "v9.8.7-rc.6" {
		t.Fatalf("%v\n%s", err, out)
	}
	for file, want := range map[string]string{
		"go.mod":                               "github.com/locksidecar/locksidecar/clients/go v9.8.7-rc.6\n",
		"clients/node/package.json":            `"version": "9.8.7-rc.6"`,
		"clients/python/pyproject.toml":        `version = "9.8.7rc6"`,
		"deploy/chart/Chart.yaml":              "appVersion: v9.8.7-rc.6",
		"deploy/sidecar.yaml":                  "image: ghcr.io/locksidecar/locksidecar:v9.8.7-rc.6\n",
		"internal/inject/settings.go":          `DefaultImage  = "ghcr.io/locksidecar/locksidecar:v9.8.7-rc.6"`,
		"clients/node/package-lock.json":       `"version": "9.8.7-rc.6"`,
		"clients/java/pom.xml":                 "<version>9.8.7-rc.6</version>",
		"clients/node/server/package.json":     `"@locksidecar/server-linux-x64": "9.8.7-rc.6"`,
		"clients/python/server/pyproject.toml": `version = "9.8.7rc6"`,
		"README.md":                            "releases/download/v9.8.7-rc.6/locksidecar_9.8.7-rc.6_linux_amd64.tar.gz",
	} {
		content, err := os.ReadFile(filepath.Join(tree, file))
		if err != nil || !strings.Contains(string(content), want) {
			t.Errorf("%s has no %s: %v", file, want, err)
		}
	}
	if out, err := run(t, tree, "grep", "-rn", "ghcr.io/locksidecar/locksidecar:v0", "compose.yaml", "deploy", "docs/kubernetes.md", "internal", "test/node"); err == nil {
		t.Errorf("the version stayed in:\n%s", out)
	}
	for _, broken := range []struct{ file, from, to string }{
		{"deploy/chart/Chart.yaml", "version: 9.8.7-rc.6", "version: 9.8.8"},
		{"clients/python/src/locksidecar/_version.py", "9.8.7rc6", "9.8.7-rc.6"},
		{"clients/java/shedlock/pom.xml", "9.8.7-rc.6", "9.8.7"},
		{"deploy/migrate-job.yaml", ":v9.8.7-rc.6", ":latest"},
	} {
		file := filepath.Join(tree, broken.file)
		good, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(good), broken.from, broken.to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := run(t, tree, version); err == nil || !strings.Contains(out, broken.file+" has version") {
			t.Errorf("%s with %s: %v\n%s", broken.file, broken.to, err, out)
		}
		if err := os.WriteFile(file, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tag := range []string{"1.2.3", "v1.2", "v1.2.3-rc1", "v1.2.3-dirty", "latest"} {
		if out, err := run(t, tree, version, tag); err == nil || !strings.Contains(out, "is no version") {
			t.Errorf("%s: %v\n%s", tag, err, out)
		}
	}
}

func TestNotesAreTheSectionOfTheVersion(t *testing.T) {
	changelog := filepath.Join(t.TempDir(), "CHANGELOG.md")
	const text = `# Changelog

## [Unreleased]

- not yet

## [1.10.0] - 2027-01-02

### Added

- one
- two

## [1.1.0] - 2026-12-01

## [1.0.0] - 2026-11-30

- first

[1.10.0]: https://example.com
`
	if err := os.WriteFile(changelog, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{"v1.10.0": "### Added\n\n- one\n- two", "v1.0.0": "- first"} {
		if out, err := run(t, ".", script(t, "notes.sh"), version, changelog); err != nil || out != want {
			t.Errorf("%s: %v\n%s", version, err, out)
		}
	}
	for version, want := range map[string]string{
		"v1.1.0":     `no section "## [1.1.0]" with changes`, // it is empty
		"v1.0":       `no section "## [1.0]" with changes`,
		"v1.10":      `no section "## [1.10]" with changes`,
		"v2.0.0":     `no section "## [2.0.0]" with changes`,
		"Unreleased": "is no version",
		"unreleased": "is no version",
	} {
		if out, err := run(t, ".", script(t, "notes.sh"), version, changelog); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", version, err, out)
		}
	}
}

// Go refuses `go install …/cmd/locksidecar@VERSION` if the module replaces or excludes others.
func TestGoInstallTakesTheModule(t *testing.T) {
	content, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	file, err := modfile.Parse("go.mod", content, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(file.Replace) > 0 || len(file.Exclude) > 0 {
		t.Error("go.mod has a replace or an exclude, so that `go install` of a version is refused; go.work is for what only we need")
	}
}

// Each folder with dependencies of its own is in a list of Dependabot.
func TestDependabotKnowsAllModules(t *testing.T) {
	config, err := os.ReadFile("../../.github/dependabot.yml")
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Updates []struct {
			Ecosystem   string   `json:"package-ecosystem"`
			Directory   string   `json:"directory"`
			Directories []string `json:"directories"`
		} `json:"updates"`
	}
	if err := yaml.Unmarshal(config, &document); err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, update := range document.Updates {
		for _, folder := range append(update.Directories, update.Directory) {
			listed[update.Ecosystem+" "+folder] = true
		}
	}
	files, err := run(t, "../..", "git", "ls-files", "--cached", "--others", "--exclude-standard")
	if err != nil {
		t.Fatalf("%v\n%s", err, files)
	}
	ecosystems := map[string]string{"go.mod": "gomod", "package.json": "npm", "pom.xml": "maven", "pyproject.toml": "pip", "Cargo.toml": "cargo", "Dockerfile": "docker", "compose.yaml": "docker-compose"}
	found := 0
	for file := range strings.FieldsSeq(files) {
		folder, name := path.Split("/" + file)
		ecosystem := ecosystems[name]
		if strings.HasPrefix(name, "requirements") && strings.HasSuffix(name, ".txt") {
			ecosystem = "pip"
		}
		// Modules of a Maven project are updated with it, and a module that has to be vulnerable is not.
		if ecosystem == "" || ecosystem == "maven" && strings.Count(folder, "/") > 3 || folder == "/test/vuln/planted/" {
			continue
		}
		found++
		if folder = "/" + strings.Trim(folder, "/"); !listed[ecosystem+" "+folder] {
			t.Errorf(".github/dependabot.yml does not list %s for %s", folder, ecosystem)
		}
	}
	if found < 20 {
		t.Errorf("only %d modules were found: the test looks in the wrong place", found)
	}
}
