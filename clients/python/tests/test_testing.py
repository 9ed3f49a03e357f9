"""What apps use for their own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from conftest import LONG
from locksidecar import Client, LockLost, NotHeld, Unavailable
from locksidecar.testing import Sidecar, find_binary

APP_TEST = """
import pytest
from locksidecar import Client

def test_the_first(locksidecar):
    with Client() as client:
        client.acquire("key")

def test_the_second_finds_nothing_of_the_first(locksidecar):
    with Client() as client:
        lock = client.acquire("key", wait=0)
        locksidecar.lose("key")
        assert lock.lost.wait(60)
        assert lock.lost.reason == "forced"

class TestSettings:
    @pytest.fixture
    def locksidecar_settings(self):
        return {"ALLOW_FORCE": "false"}

    def test_they_reach_it(self, locksidecar):
        with Client() as client, client.lock("key"), pytest.raises(Exception, match="ALLOW_FORCE"):
            locksidecar.lose("key")
"""


def test_a_lock_is_lost_on_request(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        with pytest.raises(LockLost), client.lock(key, wait=0) as lock:
            sidecar.lose(key)
            assert lock.lost.wait(LONG)
            assert lock.lost.reason == "forced"
        with pytest.raises(NotHeld):
            sidecar.lose(key)


def test_one_permit_is_lost(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        with client.semaphore(key, 2, wait=0) as second, suppress(LockLost), client.semaphore(key, 2, wait=0) as first:
            sidecar.lose(key, token=first.token)
            assert first.lost.wait(LONG)
            assert not second.lost


def test_it_hangs_and_goes_on(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path, timeout=0.2) as client:
        with sidecar.hanging(), pytest.raises(Unavailable):
            client.get(key)
        assert client.get(key).state == "free"


def test_it_is_away_and_comes_back_without_locks(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        held = client.acquire(key, wait=0)
        with sidecar.away():
            assert held.lost.wait(LONG)
            with pytest.raises(Unavailable):
                client.get(key)
        assert client.get(key).state == "free"


def test_settings_reach_it(key: str) -> None:
    with Sidecar(ALLOW_FORCE="false") as sidecar, Client(sidecar.path) as client, client.lock(key):
        with pytest.raises(Exception, match="ALLOW_FORCE"):
            sidecar.lose(key)


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(RuntimeError, match="LOCKSIDECAR_TTL"), Sidecar(TTL="15"):
        pass


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCKSIDECAR_BINARY", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match=r'none is no program: run `pip install "locksidecar\[server\]"`'):
        find_binary()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCKSIDECAR_BINARY", "bin/none")  # the working directory of a test is easily another one
    with pytest.raises(FileNotFoundError, match=f"LOCKSIDECAR_BINARY={tmp_path}/bin/none is no program"):
        find_binary()
    monkeypatch.delenv("LOCKSIDECAR_BINARY")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no program `locksidecar`"):
        find_binary()
    program = tmp_path / "locksidecar"
    program.touch(mode=0o755)
    assert find_binary() == str(program)


def test_pytest_finds_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(APP_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTEST_ADDOPTS": ""}, check=False,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout + done.stderr
