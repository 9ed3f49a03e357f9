#!/usr/bin/env python3
"""Checks what release/build.sh has built: release/check.py FOLDER VERSION.

It installs each package as a user does, and takes a lock with each. All this in an empty home, without a variable: the sidecar and each client
must find each other there.
"""

import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps
from pathlib import Path

DIST, VERSION = Path(sys.argv[1]).resolve(), sys.argv[2]
NUMBER = VERSION[1:]
HOME = Path.home()
CLIENT_GO = "github.com/locksidecar/locksidecar/clients/go"
CLIENT = Path("clients/python").resolve()
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
PYTHON = """
from importlib.metadata import version
from locksidecar import Client
with Client() as client, client.lock("release:python", wait=5) as lock:
    print(version("locksidecar"), lock.token > 0)
"""
NODE = """
const { version } = require("locksidecar/package.json");
const { Client } = require("locksidecar");
(async () => {
  const { Client: Same } = await import("locksidecar");
  if (Same !== Client) throw new Error("import and require give different clients");
  const client = new Client();
  const lock = await client.acquire("release:node", { waitMs: 5000 });
  console.log(version, lock.token > 0);
  await lock.release();
  await client.close();
})();
"""
RUBY = """
require "locksidecar"
Locksidecar::Client.new.lock("release:ruby", wait: 5) { |lock| puts "#{Locksidecar::VERSION} #{lock.token.positive?}" }
"""
PHP = """<?php
require "vendor/autoload.php";
use Locksidecar\\{Client, Lock, Version};
(new Client())->withLock("release:php", function (Lock $lock): void { echo Version::NUMBER, " ", $lock->token > 0 ? "true" : "false"; }, wait: 5.0);
"""
RUST = """
use locksidecar::{Client, Error, Options};
#[tokio::main]
async fn main() -> Result<(), Error> {
    Client::new().lock("release:rust", Options::new(), |lock| async move { println!("{}", lock.token() > 0); Ok(()) }).await
}
#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn kit() {
        let sidecar = locksidecar::testing::Sidecar::start(&[]);
        sidecar.client().acquire("k", locksidecar::Options::new()).await.unwrap().release().await.unwrap();
    }
}
"""
JAVA = """
import io.github.locksidecar.*;
class Lock {
  public static void main(String[] arguments) throws Exception {
    try (LockClient client = LockClient.create(); HeldLock lock = client.acquire("release:java")) {
      System.out.println(lock.token() > 0);
    }
  }
}
"""

GO = """
package main

import (
	"context"
	"fmt"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

func main() {
	client := locksidecar.New(locksidecar.Config{})
	defer client.Close()
	err := client.Do(context.Background(), "release:go", func(_ context.Context, lock *locksidecar.Lock) error {
		fmt.Println(lock.Token() > 0)
		return nil
	})
	if err != nil {
		panic(err)
	}
}
"""
GO_TEST = """
package main

import (
	"testing"

	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

func TestKit(t *testing.T) {
	lock, err := locksidecartest.Start(t, nil).Client().Acquire(t.Context(), "k")
	if err != nil || lock.Release() != nil {
		t.Fatal(err)
	}
}
"""


def say(what: str, result: str) -> None:
    print(f"{what:<10} {result}", flush=True)


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def want(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        sys.exit(f"{what}: {got!r}, want {wanted!r}")


def archives(work: Path) -> Path:
    """Unpacks all archives, and returns the binary for this machine."""
    run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=DIST)
    names = sorted(DIST.glob("locksidecar_*.tar.gz"))
    want("archives", len(names), 4)
    own = None
    for archive in names:
        name = archive.name.removesuffix(".tar.gz")
        with tarfile.open(archive) as tar:
            want(name, sorted(tar.getnames()), [name, *(f"{name}/{file}" for file in ("LICENSE", "README.md", "THIRD_PARTY_LICENSES", "locksidecar"))])
            want(name, {(m.uid, m.gid) for m in tar.getmembers()}, {(0, 0)})
            tar.extractall(work, filter="data")
        system, arch = name.split("_")[-2:]
        binary = work / name / "locksidecar"
        built = run("go", "version", "-m", binary)
        for setting in (f"GOOS={system}", f"GOARCH={arch}", "CGO_ENABLED=0", "-trimpath=true"):
            want(f"{name} is built with {setting}", f"\t{setting}" in built, True)
        parts = (DIST / f"{name}.cdx.json").read_text()
        # The client for Go comes from the same tree, by go.work: it is a part of this release, and not one that it depends on.
        modules = {line.split("\t")[2] for line in built.splitlines() if line.startswith("\tdep\t")} - {CLIENT_GO}
        missing = sorted(module for module in modules if f'"name": "{module}"' not in parts)
        want(f"modules that {name}.cdx.json lacks", missing, [])
        if (system, arch) == (platform.system().lower(), MACHINE):
            own = binary
    if own is None:
        sys.exit("no archive is for this machine")
    say("archives", "4 unpacked; each has the licences, is for its platform, and its list of parts is complete")
    return own


@contextmanager
def serving(*command: object, cwd: Path) -> Iterator[None]:
    """A sidecar, without any configuration. It must end with 0, once its process is told to."""
    with (cwd / "log").open("w") as log, subprocess.Popen([str(word) for word in command], cwd=cwd, stderr=log) as sidecar:
        try:
            run(*command[:-1], "health", "--wait", "30s", cwd=cwd)
            yield
        finally:
            sidecar.terminate()
    want(f"exit code of {shlex.join(map(str, command))}", sidecar.returncode, 0)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def servers(work: Path) -> None:
    """The packages of PyPI and npm have the programs of the archives, which can be run there."""
    run(CLIENT / ".venv/bin/python", "-m", "twine", "check", "--strict", *sorted(DIST.glob("python/*")))
    for platform_, wheel_tag, npm_name in (
        ("linux_amd64", "manylinux_2_17_x86_64.musllinux_1_1_x86_64", "linux-x64"),
        ("linux_arm64", "manylinux_2_17_aarch64.musllinux_1_1_aarch64", "linux-arm64"),
        ("darwin_amd64", "macosx_12_0_x86_64", "darwin-x64"),
        ("darwin_arm64", "macosx_12_0_arm64", "darwin-arm64"),
    ):
        program = digest((work / f"locksidecar_{NUMBER}_{platform_}" / "locksidecar").read_bytes())
        (wheel,) = (p for p in DIST.glob("python/locksidecar_server-*.whl") if all(tag in p.name for tag in wheel_tag.split(".")))
        with zipfile.ZipFile(wheel) as packed:
            (script,) = (info for info in packed.infolist() if info.filename.endswith(".data/scripts/locksidecar"))
            want(f"{wheel.name} has the archive's program", digest(packed.read(script)), program)
            want(f"{wheel.name} can be run", (script.external_attr >> 16) & 0o777, 0o755)
        with tarfile.open(DIST / "npm" / f"locksidecar-server-{npm_name}-{NUMBER}.tgz") as packed:
            member = packed.getmember("package/bin/locksidecar")
            want(f"{npm_name} has the archive's program", digest(packed.extractfile(member).read()), program)
            want(f"{npm_name} can be run", member.mode & 0o777, 0o755)
    say("servers", "4 wheels and 4 npm packages have the archives' programs, byte by byte")


def pip(folder: Path, *packages: object) -> Path:
    """A fresh environment with packages of this release alone."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "-q", "--no-index", "--find-links", DIST / "python", "--disable-pip-version-check", *packages)
    return folder / "bin"


def python(bin_: Path, what: str) -> None:
    number, held = run(bin_ / "python", "-c", PYTHON, cwd=bin_).split()
    want(what, held, "True")
    want(what, number.split("rc")[0].split("a")[0].split("b")[0], NUMBER.split("-")[0])


def first_lock_of_python(work: Path) -> None:
    bin_ = pip(work / "pip", "locksidecar[server]")
    want("the program that locksidecar.testing finds", run(bin_ / "python", "-c", "from locksidecar.testing import find_binary; print(find_binary())"), str(bin_ / "locksidecar"))
    want("the wheel's program", run(bin_ / "locksidecar", "--version").split(",")[0], f"locksidecar {VERSION}")
    with serving(bin_ / "locksidecar", "serve", cwd=work / "pip"):
        python(bin_, "wheel")
    say("pip", "pip install locksidecar[server]; locksidecar serve; and the client has taken a lock")


def sdist(work: Path) -> None:
    (source,) = DIST.glob("python/*.tar.gz")
    run(CLIENT / ".venv/bin/python", "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation",
        "--disable-pip-version-check", "-w", work / "rebuilt", source)
    (wheel,) = (work / "rebuilt").glob("*.whl")
    python(pip(work / "sdist", wheel), "sdist")
    say("sdist", f"{source.name} makes a wheel, whose client has taken a lock")


def first_lock_of_node(work: Path) -> None:
    folder = work / "node"
    folder.mkdir()
    # npm takes the package of this platform, and refuses those of others: they are optional.
    run("npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", DIST / f"npm/locksidecar-{NUMBER}.tgz", DIST / f"npm/locksidecar-server-{NUMBER}.tgz",
        DIST / f"npm/locksidecar-server-{platform.system().lower()}-{MACHINE.replace('amd64', 'x64')}-{NUMBER}.tgz", cwd=folder)  # fmt: skip
    found = run("node", "-p", "require('locksidecar/testing').findBinary()", cwd=folder)
    want("the program that locksidecar/testing finds", found.startswith(str(folder)) and found.endswith("/bin/locksidecar"), True)
    want("npx", run("npx", "--offline", "@locksidecar/server", "--version", cwd=folder).split(",")[0], f"locksidecar {VERSION}")
    with serving(folder / "node_modules/.bin/locksidecar", "serve", cwd=folder):
        want("npm", run("node", "-e", NODE, cwd=folder), f"{NUMBER} true")
    say("npm", "npm install locksidecar @locksidecar/server; npx @locksidecar/server serve; and the client has taken a lock, by import and require")


def ruby(work: Path) -> None:
    """The gem installs into an empty home, without a registry, and has its licence and its types."""
    (package,) = DIST.glob("gem/locksidecar-*.gem")
    home = {**os.environ, "GEM_HOME": str(work / "gem"), "GEM_PATH": str(work / "gem")}
    run("gem", "install", "--local", "--no-document", "--quiet", package, env=home)
    (installed,) = (work / "gem" / "gems").iterdir()
    for file in ("LICENSE", "README.md", "lib/locksidecar/testing.rb", "sig/locksidecar.rbs"):
        want(f"{package.name} has {file}", (installed / file).is_file(), True)
    number, held = run("ruby", "-w", "-e", RUBY, cwd=work, env=home).split()
    want("the gem's version", f"locksidecar-{number}", package.stem)
    want("gem", held, "true")
    say("gem", f"{package.name} is installed alone, and its client has taken a lock")


def php(work: Path) -> None:
    """Composer installs what the archive has into an empty project, without an index. (It reads archives itself only with PHP's zip extension.)"""
    (package,) = DIST.glob("composer/locksidecar-php-*.tar.gz")
    folder = work / "php"
    folder.mkdir()
    with tarfile.open(package) as packed:
        packed.extractall(work / "unpacked", filter="data")
    source = {"type": "path", "url": str(work / "unpacked" / package.name.removesuffix(".tar.gz")), "options": {"symlink": False}}
    (folder / "composer.json").write_text(dumps({"repositories": [source, {"packagist.org": False}], "require": {"locksidecar/locksidecar": NUMBER}}))
    home = {**os.environ, "COMPOSER_ALLOW_SUPERUSER": "1", "COMPOSER_HOME": str(work / "composer")}
    run("composer", "install", "--no-interaction", "--quiet", cwd=folder, env=home)
    installed = folder / "vendor/locksidecar/locksidecar"
    for file in ("LICENSE", "README.md", "src/Testing/WithSidecar.php"):
        want(f"{package.name} has {file}", (installed / file).is_file(), True)
    want(f"{package.name} has no tests", (installed / "tests").exists(), False)
    (folder / "lock.php").write_text(PHP)
    want("composer", run("php", "-d", "error_reporting=-1", "lock.php", cwd=folder), f"{NUMBER} true")
    say("composer", f"{package.name} is installed into an empty project, and its client has taken a lock")


def jvm(work: Path) -> None:
    folder = DIST / "maven/io/github/locksidecar/locksidecar" / NUMBER
    names = {path.name.removeprefix(f"locksidecar-{NUMBER}") for path in folder.iterdir()}
    want("files of the client for the JVM", names, {".jar", ".pom", "-sources.jar", "-javadoc.jar"})
    (json,) = HOME.glob(".m2/repository/com/grack/nanojson/*/nanojson-*.jar")
    (work / "Lock.java").write_text(JAVA)
    path = os.pathsep.join([str(folder / f"locksidecar-{NUMBER}.jar"), str(json)])
    held = run("java", "--module-path", path, "--add-modules", "io.github.locksidecar", work / "Lock.java")
    want("jvm", held, "true")
    say("jvm", f"{folder.name}: the module runs with its one dependency, and has taken a lock")


def go(work: Path, binary: Path) -> None:
    """An app of its own gets the client as from a proxy, and nothing else."""
    folder = work / "go"
    folder.mkdir()
    (folder / "main.go").write_text(GO)
    (folder / "main_test.go").write_text(GO_TEST)
    module = CLIENT_GO
    environment = {
        **os.environ, "GOPROXY": f"file://{DIST / 'go'}", "GONOSUMDB": module, "GOFLAGS": "-modcacherw", "GOWORK": "off",
        "GOPATH": str(work / "gopath"), "GOTOOLCHAIN": "local", "LOCKSIDECAR_BINARY": str(binary),
    }  # fmt: skip
    run("go", "mod", "init", "example.org/app", cwd=folder, env=environment)
    run("go", "get", f"{module}@{VERSION}", cwd=folder, env=environment)
    want("modules of the app", run("go", "list", "-m", "all", cwd=folder, env=environment).split("\n"), ["example.org/app", f"{module} {VERSION}"])
    want("go", run("go", "run", ".", cwd=folder, env=environment), "true")
    run("go", "test", "./...", cwd=folder, env=environment)
    known = run("go", "env", "GOMODCACHE")
    outside = environment | {"GOPROXY": f"file://{DIST / 'go'},file://{known}/cache/download,{run('go', 'env', 'GOPROXY')}", "GONOSUMDB": "github.com/locksidecar/*", "GOFLAGS": "-modcacherw -mod=mod"}
    for beside in sorted(path.parent.relative_to(DIST / "go") for path in (DIST / "go" / module).glob("*/@v")):
        run("go", "get", f"{beside}@{VERSION}", cwd=folder, env=outside)
        run("go", "build", str(beside), cwd=folder, env=outside)
    say("go", f"go get {module}@{VERSION} into an empty app, with no other module; the client has taken a lock, and its test kit, too; the modules beside it are built")


def go_install(work: Path) -> None:
    """`go install` builds the program from the modules alone: with the client of this version, and not with that of a checkout."""
    known = run("go", "env", "GOMODCACHE")
    environment = {
        **os.environ, "GOPROXY": f"file://{DIST / 'go'},file://{known}/cache/download,{run('go', 'env', 'GOPROXY')}", "GONOSUMDB": "github.com/locksidecar/*",
        "GOFLAGS": "-modcacherw -trimpath -tags=grpcnotrace", "CGO_ENABLED": "0", "GOMODCACHE": str(work / "modules"), "GOBIN": str(work / "gobin"), "GOTOOLCHAIN": "local",
    }  # fmt: skip
    module = "github.com/locksidecar/locksidecar"
    run("go", "install", f"{module}/cmd/locksidecar@{VERSION}", cwd=work, env=environment)
    binary = work / "gobin/locksidecar"
    want("go install", run(binary, "--version").split(",")[0], f"locksidecar {VERSION}")
    linked = [line.split("\t")[2:4] for line in run("go", "version", "-m", binary).splitlines() if line.startswith(f"\tdep\t{module}")]
    want("our modules in it", linked, [[f"{module}/clients/go", VERSION]])
    say("go install", f"{module}/cmd/locksidecar@{VERSION} from the modules alone, into an empty cache")


def rust(work: Path, binary: Path) -> None:
    """An empty crate gets the package, with what cargo has fetched for the tests or fetches now."""
    (package,) = DIST.glob("crates/locksidecar-*.crate")
    folder = work / "rust"
    (folder / "src").mkdir(parents=True)
    with tarfile.open(package) as packed:
        packed.extractall(folder, filter="data")
    name = package.name.removesuffix(".crate")
    for file in ("LICENSE", "README.md", "src/testing.rs"):
        want(f"{package.name} has {file}", (folder / name / file).is_file(), True)
    want(f"{package.name} has no tests", (folder / name / "tests").exists(), False)
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "app"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\nexclude = ["*"]\n[dependencies]\n'
        f'locksidecar = {{ path = "{name}" }}\ntokio = {{ version = "1", features = ["macros", "rt"] }}\n'
        f'[dev-dependencies]\nlocksidecar = {{ path = "{name}", features = ["testing"] }}\n'
    )
    (folder / "src" / "main.rs").write_text(RUST.replace("[tokio::main]", '[tokio::main(flavor = "current_thread")]'))
    environment = {
        **os.environ, "CARGO_HOME": os.environ.get("CARGO_HOME", str(HOME / ".cargo")), "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(HOME / ".rustup")),
        "LOCKSIDECAR_BINARY": str(binary),
    }  # fmt: skip
    want("rust", run("cargo", "run", "--quiet", cwd=folder, env=environment), "true")
    run("cargo", "test", "--quiet", cwd=folder, env=environment)
    say("crates", f"{package.name} is built in an empty crate; the client has taken a lock, and its test kit, too")


def chart() -> None:
    (package,) = DIST.glob("chart/*.tgz")
    objects = run(os.environ["HELM"], "template", "locksidecar", package, "--namespace", "locksidecar")
    want("the chart names the image", f"image: ghcr.io/locksidecar/locksidecar:{VERSION}\n" in objects, True)
    say("chart", f"{package.name} is rendered, {objects.count(chr(10) + 'kind: ')} objects")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ls-release-") as folder:
        work = Path(folder)
        (work / "home").mkdir()
        for name in [name for name in os.environ if name.startswith(("LOCKSIDECAR_", "npm_", "PIP_"))]:
            del os.environ[name]
        os.environ["HOME"] = str(work / "home")
        binary = archives(work)
        servers(work)
        want("--version", run(binary, "--version").split(",")[0], f"locksidecar {VERSION}")
        with serving(binary, "serve", cwd=work):
            run(binary, "acquire", "release:binary", "--ttl", "30s")
            say("binary", run(binary, "--version") + ": serves, and its command has taken a lock")
            sdist(work)
            ruby(work)
            php(work)
            jvm(work)
            go(work, binary)
            rust(work, binary)
        go_install(work)
        first_lock_of_python(work)
        first_lock_of_node(work)
    chart()


if __name__ == "__main__":
    main()
