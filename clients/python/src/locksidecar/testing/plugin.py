"""The fixture `locksidecar` for pytest, which is there when this package is installed.

def test_the_report_ends_when_its_lock_is_lost(locksidecar):
    report = start_report()            # uses Client(), which finds the sidecar of this test
    locksidecar.lose("report:daily")
    assert report.ended_with("lock lost")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import Sidecar


@pytest.fixture
def locksidecar(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sidecar]:
    """A sidecar for one test: see `locksidecar.testing.Sidecar`. Clients that are made in the test use it."""
    from . import Sidecar  # here, because pytest loads each plugin, also where nobody uses this one

    with Sidecar() as sidecar:
        for name, value in sidecar.env.items():
            monkeypatch.setenv(name, value)
        yield sidecar
