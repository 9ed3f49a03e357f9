"""The fixture `locksidecar` for pytest, which is there when this package is installed.

def test_the_report_ends_when_its_lock_is_lost(locksidecar):
    report = start_report()            # uses Client(), which finds the sidecar of this test
    locksidecar.lose("report:daily")
    assert report.ended_with("lock lost")

A fixture `locksidecar_settings` of your own, in a module or a class, names settings of the sidecar: see `Sidecar`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import Sidecar


@pytest.fixture
def locksidecar_settings() -> dict[str, str]:
    """The settings of the sidecar, such as `{"TTL": "2s"}`. Tests override it."""
    return {}


@pytest.fixture
def locksidecar(monkeypatch: pytest.MonkeyPatch, locksidecar_settings: dict[str, str]) -> Iterator[Sidecar]:
    """A sidecar for one test: see `locksidecar.testing.Sidecar`. Clients that are made in the test use it."""
    from . import Sidecar  # here, because pytest loads each plugin, also where nobody uses this one

    with Sidecar(**locksidecar_settings) as sidecar:
        for name, value in sidecar.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("LOCKSIDECAR_URL", raising=False)  # it would win
        yield sidecar
