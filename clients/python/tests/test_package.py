"""The built package works in an empty environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USE = """
import asyncio, sys
from locksidecar import AsyncClient, Client
with Client(sys.argv[1]) as client, client.lock(sys.argv[2], wait=0) as lock:
    print(lock.token > 0)
async def main():
    async with AsyncClient(sys.argv[1]) as client, client.lock(sys.argv[2], wait=0) as lock:
        print(lock.token > 0)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    # The wheel is built from the sdist, which shows that the sdist is complete.
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], check=True, stdout=subprocess.DEVNULL
    )
    return out


def test_the_content_of_the_package(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "locksidecar/py.typed" in names
    assert any(n.endswith("/LICENSE") for n in names)
    assert {n.split("/")[0].split("-")[0] for n in names} == {"locksidecar"}
    assert {"locksidecar/contrib/_held.py", "locksidecar/contrib/apscheduler.py"} <= set(names)
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert needed == []  # the frameworks of locksidecar.contrib are extras
    for label in ("Homepage", "Source", "Changelog", "Issues"):
        assert f"Project-URL: {label}, https://github.com/locksidecar/locksidecar" in metadata
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert any(n.endswith("/src/locksidecar/_core.py") for n in archive.getnames())


@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def test_it_installs_and_works(built: Path, pattern: str, tmp_path: Path, path: str, key: str) -> None:
    [package] = built.glob(pattern)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-q", package], check=True)
    said = subprocess.run(
        [python, "-I", "-c", USE, path, key], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert said.stdout.split() == ["True", "True"]
