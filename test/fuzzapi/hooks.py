"""What schemathesis sends, changed where the sidecar would only wait, or know no session."""

import os
import re

import schemathesis

LONGEST_WAIT = 20  # milliseconds


@schemathesis.hook
def map_body(context, body):
    """Cuts a wait that is allowed, and one without limit. What is not allowed stays so."""
    if isinstance(body, dict):
        wait = body.get("wait_ms")
        if type(wait) is int and (wait == -1 or LONGEST_WAIT < wait <= 86_400_000):
            body["wait_ms"] = LONGEST_WAIT
    return body


@schemathesis.hook
def map_headers(context, headers):
    """Of the sessions that are made up, makes most the one that lives."""
    session = (headers or {}).get("Lock-Session")
    if isinstance(session, str) and re.fullmatch("[0-9a-f]{32}", session) and session[-1] not in "ef":
        headers["Lock-Session"] = os.environ["FUZZ_SESSION"]
    return headers
