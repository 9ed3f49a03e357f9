#!/usr/bin/env python3
"""Packs the client for Go as a module proxy serves it: release/go-module.py FOLDER VERSION.

The tag clients/go/VERSION publishes the module. This is what a proxy makes of it, so that a release can be tried before. The same files give the
same bytes.
"""

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

SOURCE, MODULE = "clients/go", "github.com/locksidecar/locksidecar/clients/go"


def main() -> None:
    dist, version = Path(sys.argv[1]), sys.argv[2]
    folder = dist / MODULE / "@v"
    folder.mkdir(parents=True)
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", SOURCE], check=True, capture_output=True, text=True).stdout.split("\0")
    files = sorted(name for name in names if name and Path(name).exists())
    nested = {os.path.dirname(name) for name in files if name.endswith("/go.mod")} - {SOURCE}
    stamp = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))
    with zipfile.ZipFile(folder / f"{version}.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in files:
            if any(name.startswith(f"{other}/") for other in nested):
                continue  # a module of its own
            entry = zipfile.ZipInfo(f"{MODULE}@{version}/{os.path.relpath(name, SOURCE)}", stamp[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, Path(name).read_bytes())
    (folder / f"{version}.mod").write_bytes(Path(SOURCE, "go.mod").read_bytes())
    (folder / f"{version}.info").write_text(json.dumps({"Version": version, "Time": time.strftime("%Y-%m-%dT%H:%M:%SZ", stamp)}) + "\n")
    (folder / "list").write_text(f"{version}\n")


if __name__ == "__main__":
    main()
