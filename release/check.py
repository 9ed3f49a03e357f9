#!/usr/bin/env python3
"""Checks what release/build.sh has built: release/check.py FOLDER VERSION.

It installs each package as a user does, and takes a lock with each through the unpacked binary.
"""

import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

DIST, VERSION = Path(sys.argv[1]).resolve(), sys.argv[2]
CLIENT = Path("clients/python").resolve()
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
        missing = [line.split("\t")[2] for line in built.splitlines() if line.startswith("\tdep\t") and f'"name": "{line.split(chr(9))[2]}"' not in parts]
        want(f"modules that {name}.cdx.json lacks", missing, [])
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        if (system, arch) == (platform.system().lower(), machine):
            own = binary
    if own is None:
        sys.exit("no archive is for this machine")
    say("archives", "4 unpacked; each has the licences, is for its platform, and its list of parts is complete")
    return own


def python(work: Path, wheel: Path, what: str) -> None:
    run(sys.executable, "-m", "venv", work / what)
    program = work / what / "bin" / "python"
    run(program, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel)
    number, held = run(program, "-c", PYTHON, cwd=work).split()
    want(what, held, "True")
    say(what, f"{wheel.name} is installed in a fresh environment, version {number}, and has taken a lock")


def jvm(work: Path) -> None:
    folder = DIST / "maven/io/github/locksidecar/locksidecar" / VERSION[1:]
    names = {path.name.removeprefix(f"locksidecar-{VERSION[1:]}") for path in folder.iterdir()}
    want("files of the client for the JVM", names, {".jar", ".pom", "-sources.jar", "-javadoc.jar"})
    (json,) = Path.home().glob(".m2/repository/com/grack/nanojson/*/nanojson-*.jar")
    (work / "Lock.java").write_text(JAVA)
    path = os.pathsep.join([str(folder / f"locksidecar-{VERSION[1:]}.jar"), str(json)])
    held = run("java", "--module-path", path, "--add-modules", "io.github.locksidecar", work / "Lock.java")
    want("jvm", held, "true")
    say("jvm", f"{folder.name}: the module runs with its one dependency, and has taken a lock")


def chart() -> None:
    (package,) = DIST.glob("chart/*.tgz")
    objects = run(os.environ["HELM"], "template", "locksidecar", package, "--namespace", "locksidecar")
    want("the chart names the image", f"image: ghcr.io/locksidecar/locksidecar:{VERSION}\n" in objects, True)
    say("chart", f"{package.name} is rendered, {objects.count(chr(10) + 'kind: ')} objects")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ls-release-") as folder:
        work = Path(folder)
        binary = archives(work)
        want("--version", run(binary, "--version").split(",")[0], f"locksidecar {VERSION}")
        os.environ["LOCKSIDECAR_SOCKET"] = str(work / "socket")
        with subprocess.Popen([binary, "serve"], env={**os.environ, "LOCKSIDECAR_STORE_URL": "memory://"}, stderr=subprocess.DEVNULL) as sidecar:
            try:
                run(binary, "health", "--wait", "30s")
                run(binary, "acquire", "release:binary", "--ttl", "30s")
                say("binary", run(binary, "--version") + ": serves, and its command has taken a lock")
                (wheel,) = DIST.glob("python/*.whl")
                python(work, wheel, "wheel")
                (source,) = DIST.glob("python/*.tar.gz")
                run(CLIENT / ".venv/bin/python", "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation",
                    "--disable-pip-version-check", "-w", work / "rebuilt", source)
                (wheel,) = (work / "rebuilt").glob("*.whl")
                python(work, wheel, "sdist")
                (package,) = DIST.glob("npm/*.tgz")
                (work / "node").mkdir()
                run("npm", "install", "--offline", "--no-audit", "--no-fund", "--silent", package, cwd=work / "node")
                want("npm", run("node", "-e", NODE, cwd=work / "node"), f"{VERSION[1:]} true")
                say("npm", f"{package.name} is installed in an empty folder, and has taken a lock, by import and require")
                jvm(work)
            finally:
                sidecar.terminate()
        want("exit code of the sidecar", sidecar.returncode, 0)
    chart()


if __name__ == "__main__":
    main()
