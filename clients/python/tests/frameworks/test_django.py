"""The command and the decorator for Django."""

from __future__ import annotations

import asyncio
import io
import time
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from conftest import LONG, Sidecar
from locksidecar import Client, InvalidRequest, LockHeld, LockLost, Unavailable
from locksidecar.contrib import held, held_async

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()

from locksidecar.contrib import django as contrib  # noqa: E402


class CloseBooks(contrib.LockedCommand):
    lock_key = "{key}"

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("key")
        parser.add_argument("--endless", action="store_true")

    def handle(self, *_: Any, **options: Any) -> str:
        assert held().key == options["key"]
        if options["endless"]:
            contrib.client().force_release(options["key"])
            while True:
                time.sleep(0.001)
        return "closed"


class Skipping(CloseBooks):
    lock_held = lock_unavailable = "skip"


@pytest.fixture(autouse=True)
def _settings(path: str) -> Any:
    settings.LOCKSIDECAR = {"socket_path": path}
    contrib.client.cache_clear()
    yield
    contrib.client().close()


@pytest.fixture
def dead(sidecar: Sidecar) -> None:
    settings.LOCKSIDECAR = {"socket_path": sidecar.path}
    sidecar.kill()


def test_a_command_with_a_lock(client: Client, key: str) -> None:
    out = io.StringIO()
    call_command(CloseBooks(), key, stdout=out)
    assert out.getvalue() == "closed\n"
    assert client.get(key).state == "free"
    with client.lock(key):
        with pytest.raises(CommandError, match=r"test_django does not run: .* is held, .*, by pod "):
            call_command(CloseBooks(), key)
        out = io.StringIO()
        call_command(Skipping(), key, stdout=out)
        assert "does not run" in out.getvalue()
        assert "closed" not in out.getvalue()


def test_a_lost_lock_ends_the_command(key: str) -> None:
    with pytest.raises(LockLost):
        call_command(CloseBooks(), key, endless=True)


def test_without_the_sidecar_the_command_does_not_run(dead: None, key: str) -> None:
    with pytest.raises(CommandError, match="cannot reach the sidecar"):
        call_command(CloseBooks(), key)
    out = io.StringIO()
    call_command(Skipping(), key, stdout=out)
    assert "cannot reach the sidecar" in out.getvalue()
    assert "closed" not in out.getvalue()


@contrib.locked("{pk}")
def pay(request: HttpRequest, pk: str, lose: bool = False) -> HttpResponse:
    if lose:
        contrib.client().force_release(pk)
        while True:
            time.sleep(0.001)
    return HttpResponse(str(held().token))


@contrib.locked("{pk}")
async def pay_async(request: HttpRequest, pk: str, lose: bool = False) -> HttpResponse:
    if lose:
        await asyncio.to_thread(contrib.client().force_release, pk)
        await asyncio.wait_for(asyncio.Event().wait(), LONG)
    return HttpResponse(str(held_async().token))


def run(view: Any, *args: Any, **kwargs: Any) -> HttpResponse:
    made = view(RequestFactory().post("/"), *args, **kwargs)
    answer: HttpResponse = asyncio.run(made) if asyncio.iscoroutine(made) else made
    return answer


@pytest.mark.parametrize("view", [pay, pay_async])
def test_views(client: Client, key: str, view: Any) -> None:
    assert int(run(view, key).content) > 0
    assert client.get(key, fresh=True).state == "free"
    with client.lock(key):
        assert run(view, key).status_code == 423
    assert run(view, key, lose=True).status_code == 503


@pytest.mark.parametrize("view", [pay, pay_async])
def test_without_the_sidecar_the_view_does_not_run(dead: None, key: str, view: Any) -> None:
    assert run(view, key).status_code == 503


def test_other_functions_raise(client: Client, key: str) -> None:
    @contrib.locked("{name}")
    def work(name: str) -> int:
        return held().token

    assert work(key) > 0
    with client.lock(key), pytest.raises(LockHeld):
        work(key)


def test_other_functions_raise_without_the_sidecar(dead: None, key: str) -> None:
    ran = []
    with pytest.raises(Unavailable):
        contrib.locked(key)(lambda: ran.append(1))()
    assert ran == []


def test_a_transaction_must_not_outlive_the_lock(client: Client, key: str) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="would be released before the transaction ends"):
        run(pay, key)
    assert run(pay, key).status_code == 200


def test_mistakes_are_found_at_once() -> None:
    with pytest.raises(InvalidRequest, match=r"wait=-1"):
        contrib.locked("x", wait=-1)
    with pytest.raises(ValueError, match="no such parameter"):
        contrib.locked("{other}")(lambda pk: pk)

    def views() -> Any:
        yield 1

    with pytest.raises(TypeError, match="is a generator"):
        contrib.locked("x")(views)
