#!/usr/bin/env python3
"""Makes calls of all kinds to the built sidecar on each store, right and wrong ones, and checks the answers against api/openapi.yaml."""

import argparse
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
sys.path.insert(0, str(ROOT / "clients" / "contract" / "curl"))

from processes import STORES, Sidecar, free_ports, start_store  # noqa: E402


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--seconds", type=int, default=60, help="for each store (default: %(default)s)")
    p.add_argument("--seed", type=int, help="of a run that failed; without, another one each time")
    p.add_argument("--sidecar", default=str(ROOT / "bin" / "locksidecar"), help="the binary (default: %(default)s)")
    options = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    failed = [store for store in STORES if not fuzz(store, options)]
    print(f"fuzz-api: {'FAILED on ' + ', '.join(failed) if failed else 'ok'}")
    return 1 if failed else 0


def fuzz(store, options):
    print(f"fuzz-api: {store}", flush=True)
    server = start_store(store)
    try:
        return run(server.url, options)
    finally:
        server.stop()


def run(url, options):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    sidecar = Sidecar(options.sidecar, {"STORE_URL": url, "TCP_ADDR": address, "ALLOW_FORCE": "true", "LOG_LEVEL": "warn"})
    program = str(pathlib.Path(sys.executable).parent / "schemathesis")
    command = [program, "--config-file", "schemathesis.toml", "run", str(ROOT / "api" / "openapi.yaml")]
    command += ["--url", f"http://{address}", "--max-time", str(options.seconds), "--warnings", "off"]
    if options.seed is not None:
        command += ["--seed", str(options.seed)]
    try:
        stream, session = open_session(address)
        fine = subprocess.run(command, cwd=FOLDER, env={**os.environ, "FUZZ_SESSION": session}).returncode == 0
        stream.close()
        if not sidecar.alive():
            print(f"the sidecar has ended; its log:\n{sidecar.tail()}")
            return False
        return fine
    finally:
        sidecar.stop()


def open_session(address):
    """Opens a session, which lives as long as the connection, and returns both."""
    connection = http.client.HTTPConnection(address)
    connection.request("POST", "/v1/sessions")
    answer = connection.getresponse()
    while not (line := answer.readline()).startswith(b"data: "):
        if not line:
            raise RuntimeError("the sidecar opened no session")
    return answer, json.loads(line.removeprefix(b"data: "))["session"]


if __name__ == "__main__":
    sys.exit(main())
