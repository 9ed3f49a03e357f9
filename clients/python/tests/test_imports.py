"""The files of the package do not import in a circle."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import locksidecar


def imports(folder: Path) -> dict[str, set[str]]:
    """The files that each file imports, also within functions and for types only."""
    files = {path.stem for path in folder.glob("*.py")}
    graph = {}
    for path in folder.glob("*.py"):
        named = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.level == 1]
        graph[path.stem] = {name for n in named for name in ([n.module] if n.module else [a.name for a in n.names])}
        assert graph[path.stem] <= files, path
    return graph


def test_no_circle() -> None:
    order = list(TopologicalSorter(imports(Path(locksidecar.__file__).parent)).static_order())
    assert order[-1] == "__init__"


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("from . import lock")
    (tmp_path / "lock.py").write_text("if TYPE_CHECKING:\n    from .client import Client")
    with pytest.raises(CycleError):
        list(TopologicalSorter(imports(tmp_path)).static_order())
