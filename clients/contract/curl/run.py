#!/usr/bin/env python3
"""Runs the contract suite with curl against the real sidecar. ../README.md explains the cases."""

import argparse
import copy
import os
import signal
import sys
import time

import suite
from match import UnknownWord, is_operator
from player import Failed, Player
from processes import NotStarted, Sidecar, start_store

ROOT = suite.FOLDER.parent.parent


class Totals:
    """The results of the cases on one store."""

    def __init__(self):
        self.passed, self.not_run, self.failed = 0, 0, 0

    def __str__(self):
        return f"{self.passed} passed, {self.not_run} not run, {self.failed} failed"


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the finally blocks
    started, bad = time.monotonic(), False
    files = suite.load(options.files)
    for store in suite.STORES:
        totals = run_store(store, files, options)
        print(f"contract, curl, {store}: {totals}")
        bad |= totals.failed > 0 or (totals.not_run > 0 and not options.old_sidecar) or totals.passed == 0
    print(f"contract, curl: {'FAILED' if bad else 'ok'} in {time.monotonic() - started:.1f} s")
    return 1 if bad else 0


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("files", nargs="*", help="names of files, such as hold.yaml; all without")
    p.add_argument("--only", default="", help="only cases whose name has this in it")
    p.add_argument("--sidecar", default=str(ROOT / "bin" / "locksidecar"), help="the binary (default: %(default)s)")
    p.add_argument("--old-sidecar", action="store_true", help="cases that need a feature which it lacks are no failure")
    p.add_argument("--red", action="store_true", help="break each expectation: every case must fail then")
    options = p.parse_args()
    if not os.access(options.sidecar, os.X_OK):
        p.error(f"there is no {options.sidecar}; `make build` makes it, or name another with --sidecar")
    return options


def run_store(store, files, options):
    totals = Totals()
    server = None if suite.GIVEN else start_store(store)
    try:
        for file in files:
            if suite.runs_on(file, store):
                run_file(file, suite.GIVEN or {"STORE_URL": server.url}, options, totals)
    finally:
        if server:
            server.stop()
    return totals


def run_file(file, store, options, totals):
    namespace = file["path"].replace("/", "-")  # files do not meet in one server
    settings = {"LOG_LEVEL": "warn", "NAMESPACE": namespace, **store, **file.get("sidecar", {})}

    def launch():
        return Sidecar(options.sidecar, settings, file.get("ready", True))

    cases = [case for case in file["cases"] if options.only in case["name"]]
    if not cases:
        return
    sidecar = launch()
    try:
        there = set(sidecar.features())
        for case in cases:
            if missing := set(case.get("features", [])) - there:
                totals.not_run += 1
                print(f"not run: {file['path']}: {case['name']}: the sidecar lacks {', '.join(sorted(missing))}")
                continue
            for broken in red(case) if options.red else [case]:
                if not sidecar.alive() or (options.red and suite.signals(case)):
                    sidecar.stop()
                    sidecar = launch()
                play(broken, file, sidecar, options, totals)
    finally:
        sidecar.stop()


def play(case, file, sidecar, options, totals):
    name = f"{file['path']}: {case['name']}"
    try:
        Player(sidecar, case["broken"][0] if "broken" in case else None).play(case)
    except Failed as e:
        if "broken" in case and str(e).startswith(f"step {case['broken'][0]},"):
            totals.passed += 1
            return
        totals.failed += 1
        print(f"FAILED: {name}: {e}{sidecar.tail() and chr(10) + '    the sidecar says: ' + sidecar.tail()}")
        return
    if "broken" in case:
        totals.failed += 1
        print(f"STAYED GREEN: {name}: with another {case['broken'][1]} in step {case['broken'][0]}")
        return
    totals.passed += 1


def red(case):
    """Yields the case with each single member of each expectation broken."""
    for number, step in enumerate(case["steps"], 1):
        for word in ("expect", "until"):
            for path in leaves(step.get(word), ()) if word in step else ():
                broken = copy.deepcopy(case)
                place = broken["steps"][number - 1][word]
                for name in path[:-1]:
                    place = place[name]
                place[path[-1]] = {"$is": "broken on purpose"}
                broken["broken"] = (number, ".".join(map(str, path)))
                yield broken


def leaves(want, path):
    if is_operator(want) or not isinstance(want, (dict, list)) or not want:
        yield path
        return
    for name, member in want.items() if isinstance(want, dict) else enumerate(want):
        yield from leaves(member, (*path, name))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (suite.Malformed, UnknownWord, NotStarted) as e:
        sys.exit(f"contract: {e}")
