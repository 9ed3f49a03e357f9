// Parts that a real sidecar cannot test.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  ConnectionLostError,
  DrainingError,
  LimitReachedError,
  LocksidecarError,
  NotGrantedError,
  StoreUnavailableError,
  UnavailableError,
  UnreachableError,
  UnsupportedError,
} from "locksidecar";
import type { Endpoint } from "../dist/endpoint";
import { Grant } from "../dist/grant";
import { EventParser } from "../dist/sse";
import { Transport } from "../dist/transport";
import { errorOf, lockInfoOf, requireFeature, requireFields } from "../dist/wire";

test("a stream is parsed in pieces of any size, also inside a character", () => {
  const text = ':\n\nevent: stop\r\ndata: {"key":"é🔒"}\r\n\r\nevent:lost\ndata:1\ndata: 2\nid: 7\n\ndata\n\n';
  const bytes = Buffer.from(text);
  const expected = [
    { name: "stop", data: '{"key":"é🔒"}' },
    { name: "lost", data: "1\n2" },
    { name: "message", data: "" },
  ];
  for (let size = 1; size <= bytes.length; size++) {
    const parser = new EventParser();
    const events = [];
    for (let at = 0; at < bytes.length; at += size) {
      events.push(...parser.push(bytes.subarray(at, at + size)));
    }
    assert.deepEqual(events, expected, `pieces of ${size} bytes`);
  }
});

test("an event is complete with its empty line", () => {
  assert.deepEqual(new EventParser().push(Buffer.from("event: lost\ndata: {}\n")), []);
});

test("a request to stop from before the grant is delivered to its holder once", () => {
  const grant = new Grant({ key: "early", token: 7 });
  grant.askToStop({ reason: "deploy", requestedAt: null });
  const delivered: [string, string | null][] = [];
  grant.listen({ onStop: ({ reason }) => delivered.push(["first", reason]) });
  grant.listen({ onStop: ({ reason }) => delivered.push(["again", reason]) });
  assert.deepEqual(delivered, [["first", "deploy"]]);
  grant.askToStop({ reason: "now", requestedAt: null });
  assert.deepEqual(delivered.slice(1), [
    ["first", "now"],
    ["again", "now"],
  ]);
});

test("bind ttl: an answer that is read late sets nothing back, and nothing sets the end of a released lock", (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const grant = new Grant({ key: "late", token: 7 });
  const now = performance.now();
  grant.expire(now, 1000);
  grant.expire(now + 2, 9_000_000); // an extension
  grant.expire(now + 1, 900); // a check that was asked before it
  t.mock.timers.tick(60_000);
  assert.equal(grant.lost, null);
  grant.end();
  grant.expire(now + 3, 1000); // an extension that was carried out before the release
  t.mock.timers.tick(60_000);
  assert.equal(grant.lost, null);
});

test("a feature that the sidecar does not name is not used", () => {
  const old = { version: "v0.0.1", api: "v1", features: ["wait", "sessions"] };
  requireFields(old, { wait_ms: 1, ttl_ms: 1, owner: "x", max_hold_ms: undefined });
  assert.throws(
    () => requireFields(old, { max_hold_ms: 1 }),
    (error) => {
      assert.ok(error instanceof UnsupportedError);
      assert.match(error.message, /max_hold_ms.*feature hold.*v0\.0\.1/);
      return true;
    },
  );
  for (const field of ["bind", "data", "request_id", "reentrant", "outcome", "on_success", "keys"]) {
    assert.throws(() => requireFields(old, { [field]: 1 }), { code: "unsupported" }, field);
  }
  assert.throws(() => requireFeature(old, "events", "an event stream"), /an event stream needs/);
});

test("a code of a newer sidecar is an error with this code", () => {
  const error = errorOf({ code: "on_strike", detail: "no", status: 499, news: 1 }, 499, undefined);
  assert.deepEqual([error.name, error.code, error.message, error.status], ["LocksidecarError", "on_strike", "no", 499]);
});

test("Retry-After is given in ms", () => {
  const error = errorOf({ code: "limit", detail: "full" }, 429, 2000);
  assert.equal(error.retryAfterMs, 2000);
});

// Proves: client deadline
test("a session that does not begin in time is a timeout, also after the head of its stream", async () => {
  const folder = mkdtempSync(join(tmpdir(), "locksidecar-parts-"));
  const description = JSON.stringify({ version: "v1", api: "v1", features: ["sessions"] });
  const answers = [
    `HTTP/1.1 200 OK\r\nContent-Length: ${description.length}\r\n\r\n${description}`,
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
  ];
  const server = createServer((socket) => {
    socket.on("error", () => {}).on("data", () => socket.write(answers.shift() ?? ""));
  });
  try {
    await new Promise<void>((resolve) => server.listen(join(folder, "s"), resolve));
    const client = new Client({ socketPath: join(folder, "s"), timeoutMs: 200 });
    const late = sleep(5000, "late", { ref: false });
    const ended = await Promise.race([client.connect().catch((error) => error.code), late]);
    assert.equal(ended, "timeout");
    await client.close();
  } finally {
    server.close();
    rmSync(folder, { recursive: true });
  }
});

// Proves: client deadline
test("the time of a call is that of all its tries", async () => {
  const sockets: Socket[] = [];
  const connect = (): Socket => {
    const socket = Object.assign(new Socket(), { connecting: true });
    if (sockets.push(socket) === 1) {
      setTimeout(() => socket.destroy(Object.assign(new Error("full"), { code: "EMFILE" })), 1500);
    }
    return socket;
  };
  const endpoint = { path: "/s", address: "/s", encrypted: false, head: () => "Host: localhost\r\n", connect };
  const transport = new Transport(endpoint as unknown as Endpoint);
  const began = performance.now();
  await assert.rejects(transport.call({ method: "GET", path: "/v1", timeoutMs: 2000 }), { code: "timeout" });
  assert.ok(performance.now() - began < 2900, `it took ${performance.now() - began} ms`);
  assert.equal(sockets.length, 2);
});

test("Unavailable is any sidecar that cannot serve now", async () => {
  const folder = mkdtempSync(join(tmpdir(), "locksidecar-parts-"));
  const socketPath = join(folder, "s");
  const answers = ["draining", "store_unavailable", "limit"].map((code) => {
    const body = JSON.stringify({ code, detail: "not now" });
    return `HTTP/1.1 503 x\r\nRetry-After: 3\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`;
  });
  const server = createServer((socket) => {
    socket.once("data", () => socket.end(answers.shift() ?? ""));
  });
  try {
    await new Promise<void>((resolve) => server.listen(socketPath, resolve));
    const refusal = async (path: string): Promise<LocksidecarError> => {
      const error = await new Client({ socketPath: path }).get("key").catch((error: unknown) => error);
      assert.ok(error instanceof LocksidecarError);
      return error;
    };
    for (const kind of [DrainingError, StoreUnavailableError]) {
      const error = await refusal(socketPath);
      assert.ok(error instanceof kind && error instanceof UnavailableError);
      assert.equal(error.retryAfterMs, 3000);
    }
    const limit = await refusal(socketPath);
    assert.ok(limit instanceof LimitReachedError && !(limit instanceof UnavailableError));
    assert.equal(limit.retryAfterMs, 3000);
    const lost = await refusal(socketPath);
    assert.ok(lost instanceof ConnectionLostError && lost instanceof UnavailableError);
    const nobody = await refusal(join(folder, "none"));
    assert.ok(nobody instanceof UnreachableError && nobody instanceof UnavailableError);
  } finally {
    server.close();
    rmSync(folder, { recursive: true });
  }
});

test("a lock that its sidecar keeps says so, and so does a refusal", () => {
  for (const kept of [true, false]) {
    assert.equal(lockInfoOf({ key: "a", kept }).kept, kept);
    for (const code of ["held", "wait_timeout"]) {
      const error = errorOf({ code, detail: "no", kept }, 423, undefined);
      assert.ok(error instanceof NotGrantedError && error.kept === kept, code);
    }
  }
});
