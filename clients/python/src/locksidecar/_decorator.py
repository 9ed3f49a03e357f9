"""Checks and keys of the decorator `locked`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from string import Formatter
from typing import Any

from ._options import text


def check(function: Callable[..., Any], wants_async: bool) -> None:
    """Raises TypeError if the function's body would not run under the lock. The message says what to use."""
    if inspect.isasyncgenfunction(function):
        what, instead = "an async generator", "`async with client.lock(...)` of an AsyncClient in its body"
    elif inspect.isgeneratorfunction(function):
        what, instead = "a generator", "`with client.lock(...)` of a Client in its body"
    elif inspect.iscoroutinefunction(function) and not wants_async:
        what, instead = "`async def`", "AsyncClient.locked"
    elif wants_async and inspect.isfunction(function) and not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise TypeError(f"{_name(function)} is not `async def`: use Client.locked")
    else:
        return
    raise TypeError(
        f"{_name(function)} is {what}: the lock would be released before its body runs. Use {instead} instead"
    )


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def key_maker(template: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Makes a function from the arguments of a call to its key: `"report:{id}"` takes the parameter `id`."""
    signature = inspect.signature(function)
    text("key", template)
    for _, field, _, _ in Formatter().parse(template):
        if field is not None and re.split(r"[.\[]", field)[0] not in signature.parameters:
            raise ValueError(
                f"the key {template!r} names {field!r}, but {_name(function)}{signature} has no such parameter"
            )

    def make(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format_map(bound.arguments)

    return make
