"""The contract suite through both halves of the package. With CONTRACT_OVER=tcp over TCP, with TLS and a token."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import BINARY, until
from contract.halves import Tasks, Threads
from contract.player import SUITE, Player
from test_tcp import TOKEN, Authority, write

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


class Tcp:
    """What sidecars over TCP and their clients need."""

    def __init__(self, folder: Path) -> None:
        ca = Authority(folder / "ca")
        self.settings = {**ca.settings(), "LOG_LEVEL": "info"}  # the log says the port
        self._files = {"token_file": write(folder / "token", TOKEN), "ca_file": ca.file}

    def at(self, sidecar: Any) -> dict[str, Any]:
        def port() -> str | None:
            lines = (json.loads(line) for line in Path(sidecar.log.name).read_text().splitlines() if line.endswith("}"))
            return next((line["tcp"].rpartition(":")[2] for line in lines if line["msg"] == "serving"), None)

        return {"url": f"https://localhost:{until('the log has the port', port)}", **self._files}


@pytest.fixture(scope="session")
def tcp(tmp_path_factory: pytest.TempPathFactory) -> Tcp | None:
    return Tcp(tmp_path_factory.mktemp("tcp")) if os.environ.get("CONTRACT_OVER") == "tcp" else None


@pytest.mark.parametrize("half", [Threads, Tasks])
@pytest.mark.parametrize(("file", "store"), RUNS)
def test_contract(file: dict[str, Any], store: str, half: Any, url: Callable[[str], str], tcp: Tcp | None) -> None:
    settings = {"LOG_LEVEL": "warn", "NAMESPACE": next(_namespaces()), **(suite.GIVEN or {"STORE_URL": url(store)})}
    settings |= file.get("sidecar", {}) | (tcp.settings if tcp else {})
    sidecar = processes.Sidecar(str(BINARY), settings, file.get("ready", True))
    calling = half()
    try:
        at = tcp.at(sidecar) if tcp else {"socket_path": sidecar.socket}
        lacking = {f for case in file["cases"] for f in case.get("features", [])} - set(sidecar.features())
        assert not lacking, "cases would not be run"
        wrong = []
        for case in file["cases"]:
            try:
                Player(sidecar, at, calling, case).play(case)
            except curl_player.Failed as e:
                wrong.append(f"{case['name']}: {e}")
        assert not wrong, "\n\n".join([*wrong, sidecar.tail()])
    finally:
        calling.end()
        sidecar.stop()


def test_there_are_cases() -> None:
    assert len(FILES) >= 10, f"the suite is not in {SUITE}"
