"""Loads the files of cases, and refuses all that ../README.md does not describe."""

import json
import os
from pathlib import Path

import yaml

from match import is_operator

FOLDER = Path(__file__).resolve().parent.parent

# Settings that name a store, as JSON, in place of the runners' own.
GIVEN = json.loads(os.environ.get("CONTRACT_STORE", "{}"))
STORES = ["given"] if GIVEN else os.environ.get("CONTRACT_STORES", "memory postgres etcd mysql redis").split()

ACQUIRE = {
    "session", "wait_ms", "ttl_ms", "bind", "owner", "reentrant", "max_hold_ms", "min_hold_ms", "on_success", "data", "request_id",
    "mode", "limit",
}  # fmt: skip

# The required and the optional arguments of each verb.
VERBS = {
    "open": ({"as"}, {"name", "ttl_ms"}),
    "close": ({"session"}, set()),
    "acquire": ({"key"}, ACQUIRE),
    "acquire_many": ({"keys"}, ACQUIRE),
    "enter": ({"key", "as"}, ACQUIRE),
    "leave": ({"block"}, {"raise"}),
    "release": ({"key", "token"}, {"session", "outcome", "result", "reentry"}),
    "force_release": ({"key"}, {"token"}),
    "check": ({"key", "token"}, {"session", "data"}),
    "extend": ({"key", "token", "ttl_ms"}, {"session", "data"}),
    "downgrade": ({"key", "token"}, {"session"}),
    "get": ({"key"}, {"session", "fresh"}),
    "list": (set(), {"session", "scope", "prefix", "type", "limit"}),
    "stop": ({"key"}, {"reason", "token"}),
    "watch": ({"key", "as"}, set()),
    "next": ({"of"}, set()),
    "finish": ({"call"}, set()),
    "cancel": ({"call"}, set()),
    "sidecar": ({"signal"}, set()),
    "features": (set(), set()),
    "raw": ({"method", "path"}, {"session", "headers", "body", "http"}),
}
SILENT = {"close", "cancel"}  # they have no result
STREAMS = {"open", "watch"}  # without an expectation they must succeed
REPEATABLE = {"acquire", "get", "list", "check", "next"}
STARTABLE = {"acquire", "acquire_many", "release", "force_release", "check", "extend", "downgrade", "get", "stop", "raw"}
FILE_MEMBERS = {"about", "sidecar", "ready", "cases"}
CASE_MEMBERS = {"name", "features", "steps"}
STEP_MEMBERS = {"expect", "until", "save", "start"}


class Malformed(Exception):
    """A file of cases does not follow the format."""


def runs_on(file, store):
    """Whether a file runs on a store. A file that names a store itself runs once."""
    return not ("STORE_URL" in file.get("sidecar", {}) and (GIVEN or store != STORES[0]))


def load(names=()):
    """Returns the files as dicts, each with its `path`: all files, or those with the given names."""
    paths = sorted(FOLDER.glob("cases/*.yaml")) + sorted(FOLDER.glob("http/*.yaml"))
    if unknown := set(names) - {p.name for p in paths}:
        raise Malformed(f"no such file: {', '.join(unknown)}; there are: {', '.join(p.name for p in paths)}")
    files = []
    for path in paths:
        file = yaml.safe_load(path.read_text("utf-8"))
        file["path"] = f"{path.parent.name}/{path.name}"
        check_file(file)
        files.append(file)
    all_names = [case["name"] for file in files for case in file["cases"]]
    if twice := {name for name in all_names if all_names.count(name) > 1}:
        raise Malformed(f"two cases have the same name: {twice}")
    return [file for file in files if not names or Path(file["path"]).name in names]


def check_file(file):
    members(file, FILE_MEMBERS | {"path"}, {"about", "cases"}, file["path"])
    for name, value in file.get("sidecar", {}).items():
        if not isinstance(value, str):
            raise Malformed(f"{file['path']}: sidecar: {name} is {value!r}; it must be a text in quotes")
    for case in file["cases"]:
        check_case(case, file["path"])
        if signals(case) and case is not file["cases"][-1]:
            raise Malformed(f"{file['path']}: {case['name']}: it signals the sidecar, so it must be the last case")


def check_case(case, path):
    members(case, CASE_MEMBERS, {"name", "steps"}, path)
    where = f"{path}: {case['name']}"
    under_way = set()
    for step in case["steps"]:
        verb, arguments = check_step(step, where, path.startswith("http/"))
        if "start" in step:
            under_way.add(step["start"])
        if verb in ("finish", "cancel"):
            if arguments["call"] not in under_way:
                raise Malformed(f"{where}: {verb} {arguments['call']}: no such call is under way")
            under_way.remove(arguments["call"])
    if under_way:
        raise Malformed(f"{where}: started, and neither finished nor cancelled: {', '.join(under_way)}")


def check_step(step, where, raw_allowed):
    verb = verb_of(step, where)
    arguments = step[verb] or {}
    where = f"{where}: {verb}"
    must, may = VERBS[verb]
    members(arguments, must | may, must, where)
    if verb == "raw" and not raw_allowed:
        raise Malformed(f"{where}: raw calls stand in http/")
    if verb == "sidecar" and arguments["signal"] != "TERM":
        raise Malformed(f"{where}: signal {arguments['signal']}; it must be TERM")
    expectations = ("expect" in step) + ("until" in step)
    if expectations != (0 if verb in SILENT or "start" in step else 1) and not (verb in STREAMS and expectations == 0):
        raise Malformed(f"{where}: a call has either expect or until; close, cancel and what is started have none")
    if "until" in step and verb not in REPEATABLE:
        raise Malformed(f"{where}: until is only for {', '.join(sorted(REPEATABLE))}")
    if "start" in step and (verb not in STARTABLE or "save" in step):
        raise Malformed(f"{where}: start is only for {', '.join(sorted(STARTABLE))}; save goes with its finish")
    check_words(step.get("expect", step.get("until")))
    return verb, arguments


def check_words(want):
    if not is_operator(want) and isinstance(want, (dict, list)):
        for member in want.values() if isinstance(want, dict) else want:
            check_words(member)


def verb_of(step, where="a step"):
    """Returns the one verb of a step."""
    verbs = [name for name in step if name not in STEP_MEMBERS]
    if len(verbs) != 1 or verbs[0] not in VERBS:
        raise Malformed(f"{where}: a step has one verb of {', '.join(VERBS)}; this one has: {', '.join(verbs) or 'none'}")
    return verbs[0]


def signals(case):
    """Whether a case ends the sidecar."""
    return any(verb_of(step) == "sidecar" for step in case["steps"])


def members(mapping, known, needed, where):
    if unknown := set(mapping) - known:
        raise Malformed(f"{where}: {', '.join(sorted(unknown))} is not known; known: {', '.join(sorted(known))}")
    if missing := needed - set(mapping):
        raise Malformed(f"{where}: {', '.join(sorted(missing))} is missing")
