"""Writes the half for threads from the half for asyncio. With `--check` it only fails where they differ.

The transports differ, and are written by hand. Above them both halves are the same.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent / "src" / "locksidecar"
FILES = {f"_async{part}.py": f"_sync{part}.py" for part in ("", "_events", "_lead", "_lock")}

REPLACEMENTS: list[tuple[str, str]] = [
    (r"(?s)    @overload\n(?:(?!@overload).)*    @overload\n(.*?) \.\.\.\n    async def .*?\) -> T:\n", r"\1\n"),
    (r"Callable\[\[AsyncTerm\], Awaitable\[T\]\] \| ", ""),
    (r", overload\n", "\n"),
    (r"wants_async=True", "wants_async=False"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\bpush_async_exit\b", "push"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b_async\b|_async(?=_)", "_sync"),
    (r"(\b|_)task(s?)\b", r"\1thread\2"),
    (r"Awaitable\[T\]|Coroutine\[Any, Any, T\]", "T"),
    (r"Awaitable, (.*), Coroutine", r"\1"),
    (r"for one in page:\n\s+yield one\n", "yield from page\n"),
    # Only asyncio can cancel the task of a block, so on_loss has no other form.
    (r" \*, on_loss: OnLoss \| None = None,", ""),
    (r"        if on_loss is not None:\n.*\n", ""),
    (r"from \._sync_loss import .*\n", ""),
    (r"\n\n        on_loss=.*", ""),
    (r": see `acquire_many`, and `lock`", ": see `acquire_many`"),
    # Sentences about tasks alone.
    (r"\bfor asyncio\b", "for threads"),
    (r"\n\n    It belongs to one event loop.*", ""),
    (r"A thread is cancelled then\.", "The function has to look at it, and to return."),
    (r"A cancelled thread", "An interrupted thread"),
]


def half(name: str) -> str:
    """The half for threads of a file."""
    text = (SOURCES / name).read_text()
    for pattern, by in REPLACEMENTS:
        text = re.sub(pattern, by, text)
    text = f"# Written by unasync.py: change {name}.\n{text}"
    for command in (["check", "-q", "--fix-only", "--select", "I,F401"], ["format", "-q"]):
        tidied = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", SOURCES / FILES[name], "-"],
            input=text, capture_output=True, text=True, check=True,
        )  # fmt: skip
        text = tidied.stdout
    return text


if __name__ == "__main__":
    for source, target in FILES.items():
        made = half(source)
        if sys.argv[1:] != ["--check"]:
            (SOURCES / target).write_text(made)
        elif (SOURCES / target).read_text() != made:
            sys.exit(f"{target} is not what unasync.py makes of {source}: run python unasync.py")
