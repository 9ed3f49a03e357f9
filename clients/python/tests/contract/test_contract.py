"""The contract suite through both halves of the package."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conftest import BINARY
from contract.halves import Tasks, Threads
from contract.player import SUITE, Player

import player as curl_player  # isort: skip # the others
import processes  # isort: skip # of the curl runner: contract.player knows where
import suite  # isort: skip

FILES = [file for file in suite.load() if file["path"].startswith("cases/")]
RUNS = [
    pytest.param(file, store, id=f"{file['path'].removeprefix('cases/')}-{store}")
    for file in FILES
    for store in suite.STORES
    if suite.runs_on(file, store)
]


@pytest.fixture(scope="session")
def url() -> Iterator[Callable[[str], str]]:
    servers: dict[str, Any] = {}

    def start(store: str) -> str:
        if store not in servers:
            servers[store] = processes.start_store(store)
        url: str = servers[store].url
        return url

    yield start
    for server in servers.values():
        server.stop()


@functools.cache
def _namespaces() -> Iterator[str]:
    return (f"n{n}" for n in range(10**6))


@pytest.mark.parametrize("half", [Threads, Tasks])
@pytest.mark.parametrize(("file", "store"), RUNS)
def test_contract(file: dict[str, Any], store: str, half: Any, url: Callable[[str], str]) -> None:
    settings = {"LOG_LEVEL": "warn", "NAMESPACE": next(_namespaces()), **(suite.GIVEN or {"STORE_URL": url(store)})}
    sidecar = processes.Sidecar(str(BINARY), {**settings, **file.get("sidecar", {})}, file.get("ready", True))
    calling = half()
    try:
        lacking = {f for case in file["cases"] for f in case.get("features", [])} - set(sidecar.features())
        assert not lacking, "cases would not be run"
        wrong = []
        for case in file["cases"]:
            try:
                Player(sidecar, calling, case).play(case)
            except curl_player.Failed as e:
                wrong.append(f"{case['name']}: {e}")
        assert not wrong, "\n\n".join([*wrong, sidecar.tail()])
    finally:
        calling.end()
        sidecar.stop()


def test_there_are_cases() -> None:
    assert len(FILES) >= 10, f"the suite is not in {SUITE}"
