#!/usr/bin/env python3
"""Runs every example against a real sidecar, and fails when one of them does, or leaves a lock behind.

The fencing example writes to a PostgreSQL that is thrown away afterwards. Python's standard library is enough.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "clients" / "contract" / "curl"))

from processes import NotStarted, Postgres, Sidecar, start_store  # noqa: E402 // found only now

LIMIT = 60  # seconds for one example
PYTHON = str(ROOT / "clients" / "python" / ".venv" / "bin" / "python")
FRAMEWORKS = str(ROOT / "clients" / "python" / "tests" / "frameworks" / ".venv" / "bin" / "python")

# Each with the command that runs it.
EXAMPLES = {
    "bash/backup.sh": ["bash"],
    "bash/session.sh": ["bash"],
    "bash/slots.sh": ["bash"],
    "ruby/once.rb": ["ruby", "-w"],
    "ruby/workers.rb": ["ruby", "-w", "-I", str(ROOT / "clients" / "ruby" / "lib")],
    "php/import.php": ["php", "-d", "error_reporting=-1", "-d", "display_errors=stderr"],
    "php/workers.php": ["php", "-d", "error_reporting=-1", "-d", "display_errors=stderr", "-d", f"auto_prepend_file={ROOT / 'clients/php/tests/autoload.php'}"],
    "python/pool.py": [sys.executable],
    "python/slots.py": [sys.executable],
    "python/leader.py": [sys.executable],
    "python/cron.py": [PYTHON],
    "node/pool.mjs": ["node"],
    "node/leader.mjs": ["node"],
    "node/cron.mjs": ["node"],
    "fencing/guarded.sh": ["bash"],
    "go/fenced/main.go": ["go", "-C", str(ROOT), "run"],
}

# Those that need frameworks: with --contrib, on PostgreSQL behind two sidecars.
CONTRIB = {
    "contrib/celery_once.py": [FRAMEWORKS],
    "contrib/django_once.py": [FRAMEWORKS],
    "contrib/fastapi_once.py": [FRAMEWORKS],
    "contrib/bullmq_once.mjs": ["node"],
    "contrib/nestjs_once.mjs": ["node"],
}

JVM_CLIENT, KOTLIN = ROOT / "clients" / "java" / "client" / "target", HERE / "kotlin" / "target"

# Those that need a JDK: with --jvm, after the build of `make test-java`.
JVM = ["java/Orders.java", "kotlin/Main.kt"]


def jvm_command(name):
    """A Java source runs as it is. Kotlin was compiled before."""
    folder = KOTLIN if name.endswith(".kt") else JVM_CLIENT
    classes = f"{folder / 'classes'}:{JVM_CLIENT / 'classes'}:{(folder / 'classpath').read_text()}"
    return ["java", "-cp", classes, "MainKt" if name.endswith(".kt") else str(HERE / name)]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("names", nargs="*", help=f"some of {', '.join(EXAMPLES)}; all without")
    p.add_argument("--contrib", action="store_true", help=f"those of the frameworks: {', '.join(CONTRIB)}")
    p.add_argument("--jvm", action="store_true", help=f"those of the JVM: {', '.join(JVM)}")
    arguments = p.parse_args()
    names = arguments.names or list(CONTRIB if arguments.contrib else JVM if arguments.jvm else EXAMPLES)
    if unknown := set(names) - {*EXAMPLES, *CONTRIB, *JVM}:
        p.error(f"no such example: {', '.join(unknown)}")
    forgotten = {str(f.relative_to(HERE)) for f in (*HERE.glob("*/*"), *HERE.glob("go/*/*")) if f.suffix in (".sh", ".rb", ".php", ".py", ".mjs", ".java", ".go")} - {*EXAMPLES, *CONTRIB, *JVM}
    if forgotten:
        p.error(f"nothing runs {', '.join(forgotten)}: add it to EXAMPLES")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the finally blocks
    stores = ["postgres"] if arguments.contrib else os.environ.get("CONTRACT_STORES", "memory postgres etcd mysql redis").split()
    started, failed = time.monotonic(), []
    postgres = Postgres()  # for the examples' own tables
    try:
        for store in stores:
            server, sidecars = start_store(store), []
            try:
                # On a server there are two, as in two pods. The embedded store belongs to one.
                for _ in range(1 if store == "memory" else 2):
                    sidecars.append(start(server.url))
                failed += [name for name in names if not run(name, sidecars, postgres)]
            finally:
                for process in [*sidecars, server]:
                    process.stop()
    finally:
        postgres.stop()
    print(f"examples: {len(stores) * len(names) - len(failed)} ok, {len(failed)} failed in {time.monotonic() - started:.1f} s", *failed)
    return 1 if failed else 0


def start(url):
    return Sidecar(str(ROOT / "bin" / "locksidecar"), {"LOG_LEVEL": "warn", "STORE_URL": url})


def run(name, sidecars, postgres):
    sidecar = sidecars[0]
    environment = {
        **os.environ,
        "LOCKSIDECAR_SOCKET": sidecar.socket,
        "LOCKSIDECAR_SOCKET_2": sidecars[-1].socket,
        "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "clients" / "python" / "src"),
        "PGHOST": postgres.folder, "PGUSER": "postgres", "PGDATABASE": "postgres",
    }  # fmt: skip
    print(f"--- {name}", flush=True)
    # A group of its own, so that nothing of an example that hangs is left.
    command = jvm_command(name) if name in JVM else [*(EXAMPLES | CONTRIB)[name], str(HERE / name)]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        code = f"no end in {LIMIT} s"
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all have ended
        process.wait()
    left = await_no_locks(sidecar)
    if code != 0 or left:
        print(f"--- {name}: FAILED: {code}; {'it left locks behind: ' + left if left else ''}\n{sidecar.tail()}", flush=True)
    return code == 0 and not left


def await_no_locks(sidecar):
    """Waits until no lock is held, except for the ticks of schedules, which nobody may run again. Returns those that stay."""
    deadline = time.monotonic() + LIMIT
    while True:
        held = subprocess.run(
            ["curl", "-sS", "--unix-socket", sidecar.socket, "http://localhost/v1/locks?scope=all"], capture_output=True, text=True, check=True
        ).stdout
        if all(lock["type"] == "tick" for lock in json.loads(held)["locks"]):
            return ""
        if time.monotonic() > deadline:
            return held
        time.sleep(0.02)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotStarted as e:
        sys.exit(f"examples: {e}")
