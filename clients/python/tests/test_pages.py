"""The examples in the documents run, except those of frameworks: `examples/` has programs for these."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import locksidecar as package
from locksidecar.testing import Sidecar

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = {"README.md": 1, "docs/get-started.md": 1, "docs/guide.md": 12, "clients/python/README.md": 3}


class Done(Exception):
    """Ends an example that goes on for ever: it has done its work."""


def blocks(page: str) -> list[str]:
    return [code for code in BLOCK.findall((ROOT / page).read_text()) if "locksidecar.contrib" not in code]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_the_page_run(page: str, locksidecar: Sidecar) -> None:
    found = blocks(page)
    assert len(found) == PAGES[page], "the number of examples in PAGES is wrong, or the test reads the page wrongly"
    with package.Client() as client, client.lock("account:of-a-list"):
        for code in found:
            done: list[Any] = []
            endless = "client.lead(" in code or "client.events(" in code

            def do(*args: Any, done: list[Any] = done, endless: bool = endless, **named: Any) -> str:
                done.append(args or named)
                if endless:
                    raise Done
                return "done"

            names = dict.fromkeys(("write", "work", "render", "read", "pull", "transfer", "log", "print"), do)
            namespace: dict[str, Any] = {"Client": package.Client, "client": client, "parts": ["a", "b"], **names}
            try:
                exec(compile(code, page, "exec"), namespace)
            except Done:
                assert endless
            assert done or "client = Client()" in code or "def test_" in code, f"this did no work:\n{code}"
