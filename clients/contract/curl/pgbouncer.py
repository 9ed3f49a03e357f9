#!/usr/bin/env python3
"""Runs a command with CONTRACT_STORE, which names a PostgreSQL behind PgBouncer in transaction mode.

Every runner of the suite uses this store in place of its own."""

import argparse
import json
import os
import signal
import subprocess
import sys

from processes import NotStarted, PgBouncer, Postgres


def main():
    p = argparse.ArgumentParser(description=__doc__)
    listen = p.add_mutually_exclusive_group()
    listen.add_argument("--never", action="store_true", help="nobody listens (POSTGRES_LISTEN=never); so it is without --direct")
    listen.add_argument("--direct", action="store_true", help="the sidecar listens past PgBouncer (POSTGRES_LISTEN_URL)")
    p.add_argument("command", nargs=argparse.REMAINDER)
    options = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the finally blocks
    server = Postgres()
    try:
        pooler = PgBouncer(server)
        try:
            listen = {"POSTGRES_LISTEN_URL": server.url, "POSTGRES_LISTEN": "always"} if options.direct else {"POSTGRES_LISTEN": "never"}
            store = json.dumps({"STORE_URL": pooler.url, **listen})
            return subprocess.run(options.command, env={**os.environ, "CONTRACT_STORE": store}).returncode
        finally:
            pooler.stop()
    finally:
        server.stop()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NotStarted as e:
        sys.exit(f"contract: {e}")
