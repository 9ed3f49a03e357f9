#!/usr/bin/env python3
"""Packs our Go modules as a module proxy serves them: release/go-modules.py FOLDER VERSION.

A tag publishes each: VERSION the sidecar's, clients/go/VERSION that of the client. This is what a proxy makes of them, so that a release can be tried
before. The same files give the same bytes.
"""

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path, PurePosixPath

ROOT = "github.com/locksidecar/locksidecar"
# All that others use. The folders of the other modules are only for us.
PUBLISHED = [".", "clients/go", *sorted(str(path.parent) for path in Path("clients/go").glob("*/go.mod"))]


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True, capture_output=True, text=True).stdout
    # As in Go's own archives, without links.
    return sorted(name for name in listed.split("\0") if name and Path(name).is_file() and not Path(name).is_symlink())


def pack(dist: Path, version: str, source: str, files: list[str]) -> None:
    module = ROOT if source == "." else f"{ROOT}/{source}"
    folder = dist / module / "@v"
    folder.mkdir(parents=True)
    stamp = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))
    with zipfile.ZipFile(folder / f"{version}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in files:
            entry = zipfile.ZipInfo(f"{module}@{version}/{os.path.relpath(name, source)}", stamp[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, Path(name).read_bytes())
    (folder / f"{version}.mod").write_bytes(Path(source, "go.mod").read_bytes())
    (folder / f"{version}.info").write_text(json.dumps({"Version": version, "Time": time.strftime("%Y-%m-%dT%H:%M:%SZ", stamp)}) + "\n")
    (folder / "list").write_text(f"{version}\n")


def main() -> None:
    dist, version = Path(sys.argv[1]), sys.argv[2]
    files = tracked()
    modules = {str(PurePosixPath(name).parent) for name in files if PurePosixPath(name).name == "go.mod"}
    # Each file belongs to the module of the nearest folder with a go.mod.
    owner = {name: next(str(folder) for folder in PurePosixPath(name).parents if str(folder) in modules) for name in files}
    for source in PUBLISHED:
        pack(dist, version, source, [name for name in files if owner[name] == source])


if __name__ == "__main__":
    main()
