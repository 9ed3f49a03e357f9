#!/usr/bin/env python3
"""A Django command with a lock, started by cron on two hosts: one runs it, and the other says that it does not.

Install with `pip install 'locksidecar[django]'`. In a project, the class is in management/commands/close_books.py, the
setting is in the project's settings, and manage.py does the rest.
"""

import os
import subprocess
import sys

import django
from django.conf import settings

from locksidecar.contrib import held
from locksidecar.contrib.django import LockedCommand

settings.configure(LOCKSIDECAR={"socket_path": os.environ.get("LOCKSIDECAR_SOCKET") or None, "name": "django_once"})
django.setup()


class Command(LockedCommand):
    lock_key = "close-books:{year}"
    lock_held = "skip"  # for cron: exit code 0

    def add_arguments(self, parser):
        parser.add_argument("--year", type=int, required=True)

    def handle(self, *args, **options):
        # Each write of the command has its token, so the late write of an earlier run is refused.
        self.stdout.write(f"closes the books, fencing token {held().token}")
        self.stdout.flush()
        sys.stdin.read()  # the work: it ends when the parent says so


def main() -> int:
    # With two sidecars on one database, the commands are in different pods.
    first = os.environ.get("LOCKSIDECAR_SOCKET", "")  # empty: the usual one
    sockets = [first, os.environ.get("LOCKSIDECAR_SOCKET_2") or first]
    hosts, lines = [], []
    try:
        for socket in sockets:
            command = [sys.executable, "-u", __file__, "close_books", "--year", "2026"]
            environment = {**os.environ, "LOCKSIDECAR_SOCKET": socket}
            hosts.append(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            lines.append(hosts[-1].stdout.readline().strip())  # before the next host begins
            print(f"host {len(hosts)}: {lines[-1]}")
        for host in hosts:
            host.communicate()
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    right = lines[0].startswith("closes the books") and "does not run" in lines[1]
    return 0 if right and not any(host.returncode for host in hosts) else 1


if __name__ == "__main__":
    sys.exit(Command().run_from_argv(sys.argv) if sys.argv[1:] else main())
