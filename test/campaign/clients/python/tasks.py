"""The program on `AsyncClient`: tasks that are cancelled."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from blocking import AGAIN, FORMS, KEYS, LIMIT, OWN
from notes import Commands, Notes, leave


class Program:
    """One client, the objects that its tasks share, and what a task does."""

    def __init__(self, task: dict[str, Any], client: Any) -> None:
        self.notes, self.client, self.task = Notes(task), client, task
        self.mutexes = {key: client.lock(key, ttl=task["ttl"]) for key in KEYS}
        self.semaphore = client.semaphore("s0", limit=LIMIT, ttl=task["ttl"])
        self.commands = Commands()

    async def act(self, actor: int, rng: random.Random) -> None:
        form = rng.choice([one for one in FORMS if one in (self.task["forms"] or FORMS)])
        wait = rng.choice([0, 50, 200, 1000, 2000, -1])
        keys = [rng.choice(KEYS)] if rng.random() > OWN else [f"own:{self.task['name']}:{actor}"]
        if form == "many":
            keys = rng.sample(KEYS, rng.randint(2, 3))
        if form in ("semaphore", "permit"):
            keys = ["s0"]
        if form == "try":
            wait = 0
        op = self.notes.begin("acquire", actor, form=form, keys=keys, wait=wait, limit=LIMIT if keys == ["s0"] else 0)
        hold = Hold(self, actor, rng, op)
        task = asyncio.create_task(hold.run(form, keys, None if wait < 0 else wait / 1000))
        timer = None
        if rng.random() < 0.5:
            delay = rng.choice([0, 0.0003, 0.0006, 0.001, 0.005, 0.05, 0.5, 2])
            timer = asyncio.get_running_loop().call_later(delay, hold.cancel, task)
        await task
        if timer is not None:
            timer.cancel()

    async def rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            reader = loop.run_in_executor(None, self.commands.read)
            await asyncio.gather(self.through(), *(self.loop(i) for i in range(self.task["actors"])))
            await reader
            if self.commands.ended:
                break
            kept = await self.client.acquire("keep:" + self.task["name"], wait=AGAIN, ttl=self.task["ttl"], data="kept")
            self.notes.add("quiet", -1, keys=[kept.key], tokens=[kept.token])
            await loop.run_in_executor(None, self.commands.read)
            if self.commands.ended:
                break
            await kept.release()
            await self.again()
            self.notes.add("quiet", -1, form="again")
            await loop.run_in_executor(None, self.commands.read)
            if self.commands.ended:
                break
        await self.client.close()
        self.notes.add("quiet", -1, form="closed")

    async def loop(self, actor: int) -> None:
        rng = random.Random(f"{self.task['seed']} {actor}")
        while not self.commands.calm:
            await self.act(actor, rng)
            await asyncio.sleep(rng.uniform(0, 0.05))

    async def through(self) -> None:
        """Holds a lock until it is lost, also while the sidecar is frozen, and then again."""
        actor, keys = self.task["actors"], [f"through:{self.task['name']}"]
        while not self.commands.calm:
            op = self.notes.begin("acquire", actor, form="through", keys=keys, wait=-1, limit=0)
            await Hold(self, actor, random.Random(0), op).run("through", keys, None)
            await asyncio.sleep(0.05)

    async def again(self) -> None:
        for key, mutex in [*self.mutexes.items(), ("s0", self.semaphore)]:
            op = self.notes.begin("again", -1, form="object", keys=[key])
            try:
                held = await mutex.acquire(timeout=AGAIN)
                if held:
                    await mutex.release()
                self.notes.end(op, "done" if held else "timeout")
            except Exception as e:
                self.notes.fail(op, e)
        op = self.notes.begin("again", -1, form="many", keys=KEYS)
        try:
            async with self.client.lock_many(KEYS, wait=AGAIN):
                pass
            self.notes.end(op, "done")
        except Exception as e:
            self.notes.fail(op, e)


class Hold:
    """One acquire, and what becomes of it."""

    def __init__(self, program: Program, actor: int, rng: random.Random, op: dict[str, Any]) -> None:
        self.program, self.notes, self.actor, self.rng, self.op = program, program.notes, actor, rng, op
        self.under_way = op  # what a cancellation meets
        self.object: Any = None
        self.release: dict[str, Any] | None = None
        self.granted = False

    def cancel(self, task: asyncio.Task[None]) -> None:
        self.notes.cancel(self.under_way)
        task.cancel()

    async def run(self, form: str, keys: list[str], wait: float | None) -> None:
        try:
            await getattr(self, "_" + form)(keys, wait)
        except (Exception, asyncio.CancelledError) as e:
            self.broken(e)
        if self.release is not None:
            self.notes.end(self.release, "done")
        while self.object is not None and (lock := self.object.held) is not None and not lock.lost:
            again = self.notes.begin("release", self.actor, form="retry", hold=self.op["id"])
            try:
                await self.object.release()
                self.notes.end(again, "done")
            except asyncio.CancelledError:
                self.notes.end(again, "cancelled")
            except Exception as e:
                self.notes.fail(again, e)
                await asyncio.sleep(0.2)

    def options(self, wait: float | None) -> dict[str, Any]:
        return {"wait": wait, "ttl": self.program.task["ttl"], "data": self.op["id"]}

    async def _with(self, keys: list[str], wait: float | None) -> None:
        async with self.program.client.lock(keys[0], **self.options(wait)) as lock:
            await self.body([lock])

    async def _through(self, keys: list[str], wait: float | None) -> None:
        async with self.program.client.lock(keys[0], **self.options(wait)) as lock:
            self.got([lock])
            while not lock.lost and not self.program.commands.calm:  # noqa: ASYNC110 - a thread sets calm
                await asyncio.sleep(0.05)
            self.leaves()

    async def _many(self, keys: list[str], wait: float | None) -> None:
        async with self.program.client.lock_many(keys, **self.options(wait)) as locks:
            await self.body(locks)

    async def _semaphore(self, keys: list[str], wait: float | None) -> None:
        async with self.program.client.semaphore("s0", limit=LIMIT, **self.options(wait)) as permit:
            await self.body([permit])

    async def _nested(self, keys: list[str], wait: float | None) -> None:
        options = {**self.options(wait), "reentrant": True}
        async with self.program.client.lock(keys[0], **options) as lock:
            self.got([lock])
            enter = self.notes.begin(
                "enter", self.actor, form="nested", keys=keys, wait=self.op["wait"], hold=self.op["id"]
            )
            self.under_way = enter
            try:
                async with self.program.client.lock(keys[0], **options) as inner:
                    self.notes.end(enter, "granted", tokens=[inner.token])
                    enter = None
                    await self.rest()
                    enter = self.under_way = self.notes.begin("leave", self.actor, form="nested", hold=self.op["id"])
                self.notes.end(enter, "done")
            except (Exception, asyncio.CancelledError) as e:
                if enter is not None:
                    self.ended(enter, e)
                if isinstance(e, asyncio.CancelledError):
                    raise
            self.leaves()

    async def _try(self, keys: list[str], wait: float | None) -> None:
        options = self.options(wait)
        del options["wait"]
        lock = await self.program.client.try_acquire(keys[0], **options)
        if lock is None:
            self.notes.end(self.op, "timeout")
            return
        async with lock:
            await self.body([lock])

    async def _mutex(self, keys: list[str], wait: float | None) -> None:
        if keys[0] not in self.program.mutexes:
            self.program.mutexes[keys[0]] = self.program.client.lock(keys[0], ttl=self.program.task["ttl"])
        self.object = self.program.mutexes[keys[0]]
        await self._object(wait)

    async def _permit(self, keys: list[str], wait: float | None) -> None:
        self.object = self.program.semaphore
        await self._object(wait)

    async def _object(self, wait: float | None) -> None:
        got = await (
            self.object.acquire(timeout=-1 if wait is None else wait) if wait != 0 else self.object.acquire(False)
        )
        if not got:
            self.notes.end(self.op, "timeout")
            return
        self.got([self.object.held])
        await self.rest()
        self.leaves()
        await self.object.release()

    def got(self, locks: list[Any]) -> None:
        self.notes.end(self.op, "granted", keys=[one.key for one in locks], tokens=[one.token for one in locks])
        self.granted = True
        for one in locks:
            one.lost.on(lambda key=one.key: self.notes.add("lost", self.actor, hold=self.op["id"], keys=[key]))

    async def rest(self) -> None:
        try:
            await asyncio.sleep(
                self.rng.choice([0, 0.005, 0.02, 0.05]) if self.rng.random() < 0.98 else self.rng.uniform(1, 8)
            )
        except asyncio.CancelledError:
            self.leaves()
            raise

    def leaves(self) -> None:
        self.under_way = self.release = self.notes.begin(
            "release", self.actor, form=self.op["form"], hold=self.op["id"]
        )

    async def body(self, locks: list[Any]) -> None:
        self.got(locks)
        await self.rest()
        self.leaves()

    def ended(self, op: dict[str, Any], error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.notes.end(op, "cancelled")
        else:
            self.notes.fail(op, error)

    def broken(self, error: BaseException) -> None:
        if not self.granted:
            self.ended(self.op, error)
        else:
            self.release = self.release or self.notes.begin(
                "release", self.actor, form=self.op["form"], hold=self.op["id"]
            )
            self.ended(self.release, error)
            self.release = None


def tasks(task: dict[str, Any], client: Any) -> None:
    asyncio.run(Program(task, client).rounds())
    leave()
