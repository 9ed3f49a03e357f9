"""The programs on `Client`: threads with signals, greenlets that are killed, and processes that fork."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from notes import Commands, Notes, leave

KEYS = [f"k{i}" for i in range(4)]
FORMS = ["with", "with", "mutex", "mutex", "try", "many", "semaphore", "permit", "nested"]
LIMIT = 2
# How often an actor wants a key that nobody else wants. The call is quick then, so interruptions meet all its steps.
OWN = 0.4
# How long an object that all actors use may take until it was granted again, when nothing fails.
AGAIN = 20


class Struck(BaseException):
    """The campaign interrupts a call, as Ctrl-C does."""


class Alarm(Exception):
    """The same from the handler of a timer, as libraries for timeouts do."""


class Program:
    """One client, the objects that its actors share, and what an actor does."""

    def __init__(self, task: dict[str, Any], client: Any) -> None:
        self.notes, self.client, self.task = Notes(task), client, task
        self.mutexes = {key: client.lock(key, ttl=task["ttl"]) for key in KEYS}
        self.semaphore = client.semaphore("s0", limit=LIMIT, ttl=task["ttl"])
        self.commands = Commands()
        # Of an actor that can be interrupted: from which moment on, see Exposed.
        self.expose: Callable[[dict[str, Any]], None] = lambda op: None
        self.cover: Callable[[], None] = lambda: None

    def act(self, actor: int, rng: random.Random) -> None:
        """Gets a lock in one of the ways, holds it, and releases it."""
        form = rng.choice([one for one in FORMS if one in (self.task["forms"] or FORMS)])
        wait = rng.choice([0, 50, 200, 1000, 2000, -1])
        keys = [rng.choice(KEYS)] if rng.random() > OWN else [f"own:{self.task['name']}:{actor}"]
        if form == "many":
            keys = rng.sample(KEYS, rng.randint(2, 3))
        if form in ("semaphore", "permit"):
            keys = ["s0"]
        if form == "try":
            wait = 0
        self.use(form, actor, rng, keys, wait)

    def through(self) -> None:
        """Holds a lock until it is lost, also while the sidecar is frozen, and then again."""
        while not self.commands.calm:
            self.use("through", self.task["actors"], random.Random(0), [f"through:{self.task['name']}"], -1)
            time.sleep(0.05)

    def use(self, form: str, actor: int, rng: random.Random, keys: list[str], wait: int) -> None:
        op = self.notes.begin("acquire", actor, form=form, keys=keys, wait=wait, limit=LIMIT if keys == ["s0"] else 0)
        hold = Hold(self, actor, rng, op)
        try:
            getattr(self, "_" + form)(hold, keys, None if wait < 0 else wait / 1000)
        except BaseException as e:
            self.cover()
            hold.broken(e)
        finally:
            self.cover()
        hold.over()

    def _with(self, hold: Hold, keys: list[str], wait: float | None) -> None:
        self.expose(hold.op)
        with self.client.lock(keys[0], wait=wait, ttl=self.task["ttl"], data=hold.op["id"]) as lock:
            hold.body([lock])

    def _through(self, hold: Hold, keys: list[str], wait: float | None) -> None:
        with self.client.lock(keys[0], wait=wait, ttl=self.task["ttl"], data=hold.op["id"]) as lock:
            hold.got([lock])
            while not lock.lost and not self.commands.calm:
                time.sleep(0.05)
            hold.leaves()

    def _nested(self, hold: Hold, keys: list[str], wait: float | None) -> None:
        self.expose(hold.op)
        options = {"wait": wait, "ttl": self.task["ttl"], "data": hold.op["id"], "reentrant": True}
        with self.client.lock(keys[0], **options) as lock:
            self.cover()
            hold.got([lock])
            enter = self.notes.begin(
                "enter", hold.actor, form="nested", keys=keys, wait=hold.op["wait"], hold=hold.op["id"]
            )
            try:
                with self.client.lock(keys[0], **options) as inner:
                    self.notes.end(enter, "granted", tokens=[inner.token])
                    enter = None
                    hold.rest()
                    enter = self.notes.begin("leave", hold.actor, form="nested", hold=hold.op["id"])
                self.notes.end(enter, "done")
            except BaseException as e:
                if enter is not None:
                    hold.ended(enter, e)
                if not hold.cancelled(e):
                    e = None
                if e is not None:
                    raise
            hold.leaves()

    def _many(self, hold: Hold, keys: list[str], wait: float | None) -> None:
        self.expose(hold.op)
        with self.client.lock_many(keys, wait=wait, ttl=self.task["ttl"], data=hold.op["id"]) as locks:
            hold.body(locks)

    def _semaphore(self, hold: Hold, keys: list[str], wait: float | None) -> None:
        self.expose(hold.op)
        with self.client.semaphore("s0", limit=LIMIT, wait=wait, ttl=self.task["ttl"], data=hold.op["id"]) as permit:
            hold.body([permit])

    def _try(self, hold: Hold, keys: list[str], wait: float | None) -> None:
        # Not exposed: between the return and the assignment an interruption loses the lock, whatever the client does.
        lock = self.client.try_acquire(keys[0], ttl=self.task["ttl"], data=hold.op["id"])
        if lock is None:
            self.notes.end(hold.op, "timeout")
            return
        with lock:
            hold.body([lock])

    def _mutex(self, hold: Hold, keys: list[str], wait: float | None) -> None:
        if keys[0] not in self.mutexes:
            self.mutexes[keys[0]] = self.client.lock(keys[0], ttl=self.task["ttl"])
        hold.object = self.mutexes[keys[0]]
        self._object(hold, wait)

    def _permit(self, hold: Hold, keys: list[str], wait: float | None) -> None:
        hold.object = self.semaphore
        self._object(hold, wait)

    def _object(self, hold: Hold, wait: float | None) -> None:
        self.expose(hold.op)
        got = hold.object.acquire(timeout=-1 if wait is None else wait) if wait != 0 else hold.object.acquire(False)
        self.cover()
        if not got:
            self.notes.end(hold.op, "timeout")
            return
        hold.got([hold.object.held])
        hold.rest()
        hold.leaves()
        hold.object.release()

    def quiet(self) -> Any:
        """All calls have ended: says what it holds, which is one lock of its own."""
        kept = self.client.acquire("keep:" + self.task["name"], wait=AGAIN, ttl=self.task["ttl"], data="kept")
        self.notes.add("quiet", -1, keys=[kept.key], tokens=[kept.token])
        return kept

    def again(self, kept: Any) -> None:
        """Uses each object."""
        kept.release()
        for key, mutex in [*list(self.mutexes.items()), ("s0", self.semaphore)]:
            op = self.notes.begin("again", -1, form="object", keys=[key])
            try:
                held = mutex.acquire(timeout=AGAIN)
                if held:
                    mutex.release()
                self.notes.end(op, "done" if held else "timeout")
            except Exception as e:
                self.notes.fail(op, e)
        op = self.notes.begin("again", -1, form="many", keys=KEYS)
        try:
            with self.client.lock_many(KEYS, wait=AGAIN):
                pass
            self.notes.end(op, "done")
        except Exception as e:
            self.notes.fail(op, e)


class Hold:
    """What became of one acquire."""

    def __init__(self, program: Program, actor: int, rng: random.Random, op: dict[str, Any]) -> None:
        self.program, self.notes, self.actor, self.rng, self.op = program, program.notes, actor, rng, op
        self.object: Any = None
        self.release: dict[str, Any] | None = None
        self.granted = False

    def got(self, locks: list[Any]) -> None:
        self.notes.end(self.op, "granted", keys=[one.key for one in locks], tokens=[one.token for one in locks])
        self.granted = True
        for one in locks:
            one.lost.on(lambda key=one.key: self.notes.add("lost", self.actor, hold=self.op["id"], keys=[key]))

    def rest(self) -> None:
        """Holds for a while, now and then for longer than a lease."""
        try:
            time.sleep(self.rng.choice([0, 0.005, 0.02, 0.05]) if self.rng.random() < 0.98 else self.rng.uniform(1, 8))
        except BaseException:
            self.leaves()
            raise

    def leaves(self) -> None:
        """From here on it is released."""
        self.release = self.notes.begin("release", self.actor, form=self.op["form"], hold=self.op["id"])
        self.program.expose(self.release)

    def body(self, locks: list[Any]) -> None:
        self.program.cover()
        self.got(locks)
        self.rest()
        self.leaves()

    def cancelled(self, error: BaseException) -> bool:
        return not isinstance(error, Exception) or isinstance(error, Alarm)

    def ended(self, op: dict[str, Any], error: BaseException) -> None:
        if self.cancelled(error):
            self.notes.end(op, "cancelled")
        else:
            self.notes.fail(op, error)

    def broken(self, error: BaseException) -> None:
        """An exception has ended it."""
        if not self.granted:
            self.ended(self.op, error)
        else:
            self.release = self.release or self.notes.begin(
                "release", self.actor, form=self.op["form"], hold=self.op["id"]
            )
            self.ended(self.release, error)
            self.release = None

    def over(self) -> None:
        """Notes the end. If the object says that it holds the lock, it is released until it does not."""
        if self.release is not None:
            self.notes.end(self.release, "done")
        while self.object is not None and (lock := self.object.held) is not None and self.mine(lock):
            again = self.notes.begin("release", self.actor, form="retry", hold=self.op["id"])
            try:
                self.object.release()
                self.notes.end(again, "done")
            except Exception as e:
                self.notes.fail(again, e)
                time.sleep(0.2)

    def mine(self, lock: Any) -> bool:
        """The last permit of a thread is that of its last acquire: an actor has one at a time."""
        return not lock.lost


class Exposed:
    """Interrupts the calls of the main thread by signals, one for each call at the most."""

    def __init__(self, program: Program, rng: random.Random) -> None:
        self._notes, self._rng, self._op = program.notes, rng, None
        self._main = threading.get_ident()
        program.expose, program.cover = self._expose, self._cover
        signal.signal(signal.SIGINT, self._strike)
        signal.signal(signal.SIGALRM, self._strike)
        threading.Thread(target=self._send, args=(program.commands,), daemon=True).start()

    def _expose(self, op: dict[str, Any]) -> None:
        if threading.get_ident() == self._main:
            self._op = op

    def _cover(self) -> None:
        if threading.get_ident() == self._main:
            self._op = None

    def _strike(self, number: int, frame: Any) -> None:
        op, self._op = self._op, None
        if op is not None:
            self._notes.cancel(op)
            raise Struck if number == signal.SIGINT else Alarm

    def _send(self, commands: Commands) -> None:
        while True:
            time.sleep(self._rng.choice([0.0002, 0.0005, 0.001, 0.002, 0.01, 0.05]))
            if not commands.calm:
                os.kill(os.getpid(), self._rng.choice([signal.SIGINT, signal.SIGALRM]))


def loop(program: Program, actor: int, seed: int, act: Callable[[int, random.Random], None]) -> None:
    rng = random.Random(f"{seed} {actor}")
    while not program.commands.calm:
        act(actor, rng)
        time.sleep(rng.uniform(0, 0.05))


def rounds(program: Program, work: Callable[[], None]) -> None:
    """Works until the campaign says calm, and so on until it ends."""
    while not program.commands.ended:
        reader = threading.Thread(target=program.commands.read)
        reader.start()
        work()
        reader.join()
        if program.commands.ended:
            break
        kept = program.quiet()
        program.commands.read()
        if program.commands.ended:
            break
        program.again(kept)
        program.notes.add("quiet", -1, form="again")
        program.commands.read()
    program.client.close()
    program.notes.add("quiet", -1, form="closed")
    leave()


def threads(task: dict[str, Any], client: Any) -> None:
    """Some threads, and the main thread, whose calls signals interrupt."""
    program = Program(task, client)
    Exposed(program, random.Random(f"{task['seed']} signals"))

    def work() -> None:
        others = [
            threading.Thread(target=program.through),
            *(
                threading.Thread(target=loop, args=(program, i, task["seed"], program.act))
                for i in range(1, task["actors"])
            ),
        ]
        for one in others:
            one.start()
        loop(program, 0, task["seed"], program.act)
        for one in others:
            one.join()

    rounds(program, work)


def processes(task: dict[str, Any], client: Any) -> None:
    """Threads, and children of a fork, which use their parent's client. Some are killed."""
    program = Program(task, client)
    Exposed(program, random.Random(f"{task['seed']} signals"))

    def child(rng: random.Random) -> None:
        for i in range(rng.randint(1, 6)):
            program.act(100 + i, rng)

    def fork(actor: int, rng: random.Random) -> None:
        if rng.random() < 0.7:
            return program.act(actor, rng)
        pid = os.fork()
        if pid == 0:
            try:
                child(rng)
            finally:
                os._exit(0)
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 0.3))
            gone, _ = os.waitpid(pid, os.WNOHANG)
            if gone == 0:
                op = program.notes.begin("killed", actor)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                program.notes.end(op, "done", pid=pid)
            return None
        os.waitpid(pid, 0)
        return None

    def work() -> None:
        others = [
            threading.Thread(target=program.through),
            *(
                threading.Thread(target=loop, args=(program, i, task["seed"], program.act))
                for i in range(1, task["actors"])
            ),
        ]
        for one in others:
            one.start()
        loop(program, 0, task["seed"], fork)
        for one in others:
            one.join()

    rounds(program, work)


def greenlets(task: dict[str, Any], client: Any) -> None:
    """Greenlets that are killed, or have a timeout, in the middle of their calls."""
    import gevent

    program = Program(task, client)
    program.commands.line = lambda: gevent.get_hub().threadpool.apply(sys.stdin.readline)

    def act(actor: int, rng: random.Random) -> None:
        one = Cut(gevent.spawn(program.act, actor, random.Random(rng.random())))
        if rng.random() < 0.5:
            one.after(rng.choice([0.001, 0.01, 0.1, 0.5, 2]), rng.choice([Struck, Alarm]))
        one.greenlet.join()
        one.stop()

    class Cut:
        def __init__(self, greenlet: Any) -> None:
            self.greenlet, self.timer, self.op = greenlet, None, None
            greenlet.cut = self

        def after(self, delay: float, error: type[BaseException]) -> None:
            self.timer = gevent.spawn_later(delay, self._cut, error)

        def _cut(self, error: type[BaseException]) -> None:
            if self.op is not None:
                program.notes.cancel(self.op)
                self.greenlet.kill(error, block=False)

        def stop(self) -> None:
            if self.timer is not None:
                self.timer.kill()

    def expose(op: dict[str, Any] | None) -> None:
        cut = getattr(gevent.getcurrent(), "cut", None)
        if cut is not None:
            cut.op = op

    program.expose, program.cover = expose, lambda: expose(None)

    def work() -> None:
        actors = [gevent.spawn(loop, program, i, task["seed"], act) for i in range(task["actors"])]
        gevent.joinall([gevent.spawn(program.through), *actors])

    rounds(program, work)
