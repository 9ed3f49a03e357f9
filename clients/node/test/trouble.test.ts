import assert from "node:assert/strict";
import { channel, subscribe, unsubscribe } from "node:diagnostics_channel";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import {
  BadAnswerError,
  Client,
  ClientClosedError,
  ConnectionError,
  LockLostError,
  StopRequestedError,
  UnreachableError,
} from "locksidecar";
import { Transport } from "../dist/transport";
import { aborted, patienceMs, queued, Sidecar, until } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ TTL: "1h" });
});
afterEach(() => sidecar.closeClients());
after(() => sidecar.remove());

describe("an aborted wait", () => {
  test("leaves the queue and throws the signal's reason", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const lock = await a.acquire("abort");
    const controller = new AbortController();
    const waiting = b.acquire("abort", { signal: controller.signal });
    await queued(a, "abort", 1);
    controller.abort(new RangeError("enough"));
    await assert.rejects(waiting, RangeError);
    await queued(a, "abort", 0);
    await lock.release();
    assert.equal((await a.get("abort")).state, "free");
    await assert.rejects(b.acquire("abort", { signal: controller.signal }), RangeError, "aborted before it began");
    assert.equal((await a.get("abort")).state, "free");
  });

  test("leaves no grant, at any moment", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    let granted = 0;
    for (let i = 0; i < 60; i++) {
      const lock = await a.acquire("race", { waitMs: patienceMs });
      const controller = new AbortController();
      const waiting = b.acquire("race", { signal: controller.signal }).then(
        (got) => got,
        () => null,
      );
      await queued(a, "race", 1);
      const released = lock.release();
      for (let turns = i % 12; turns > 0; turns--) {
        await new Promise(setImmediate);
      }
      controller.abort();
      await released;
      const got = await waiting;
      granted += got ? 1 : 0;
      await got?.release();
    }
    assert.equal((await a.acquire("race", { waitMs: patienceMs })).lost, null);
    assert.ok(granted < 60, "it was never aborted in time");
  });

  test("withdraws a grant whose answer has arrived", async () => {
    const client = sidecar.client();
    await client.connect(); // so the next answer is that of the acquire
    const controller = new AbortController();
    const answered = (): void => controller.abort(new RangeError("just now"));
    const name = "http.client.response.finish"; // published when the head is parsed
    assert.equal(channel(name).hasSubscribers, false);
    const got = client.acquire("just", { signal: controller.signal });
    subscribe(name, answered);
    await assert.rejects(got, RangeError);
    unsubscribe(name, answered);
    assert.equal((await client.get("just")).state, "free");
  });
});

describe("a lost session", () => {
  test("a restart under a waiting client: its locks are lost, its wait goes on", async () => {
    const own = await Sidecar.start();
    try {
      const [a, b] = [own.client(), own.client()];
      const held = await a.acquire("restart");
      const other = await b.acquire("other");
      const watch = a.events("restart");
      assert.equal((await watch.next()).value?.type, "state");
      const waiting = b.acquire("restart");
      const rival = own.client().acquire("restart", { waitMs: 60_000 });
      await queued(a, "restart", 2);
      const lost = [aborted(held.signal), aborted(other.signal)];
      await own.end();
      for (const reason of await Promise.all(lost)) {
        assert.ok(reason instanceof LockLostError);
        assert.equal(reason.reason, "disconnected");
      }
      await assert.rejects(held.release(), LockLostError);
      await assert.rejects(a.get("restart"), UnreachableError);
      await own.start();
      const one = await Promise.race([waiting, rival]);
      await one.check();
      await one.release();
      await Promise.all([waiting, rival]);
      for (let type = ""; type !== "acquired" && type !== "state"; ) {
        type = (await watch.next()).value?.type ?? "";
      }
      const again = await a.acquire("other");
      assert.notEqual(again.token, other.token);
    } finally {
      await own.remove();
    }
  });

  test("a restart that drains: a wait goes on with the next sidecar", async () => {
    const own = await Sidecar.start();
    try {
      const [a, b] = [own.client(), own.client()];
      const held = await a.acquire("drain");
      const waiting = b.acquire("drain");
      await queued(a, "drain", 1);
      const ended = own.end("SIGTERM");
      await until("acquires are refused", async () => {
        const answer = await a.tryAcquire("drain:2").catch((error) => error);
        await answer.lock?.release(); // the drain had not begun
        return answer.code === "draining";
      });
      await held.release(); // still works
      await ended;
      await own.start();
      assert.equal((await waiting).lost, null);
    } finally {
      await own.remove();
    }
  });

  test("the next call replaces a dead kept connection", async () => {
    const own = await Sidecar.start();
    try {
      const client = own.client();
      await client.acquire("stale");
      own.endNow();
      // Not a ConnectionLostError, because the call is repeated over a new connection.
      await assert.rejects(client.get("stale"), UnreachableError);
    } finally {
      await own.remove();
    }
  });

  test("also the next call without a session", async () => {
    const own = await Sidecar.start();
    try {
      const client = own.client();
      await client.get("stale");
      own.endNow();
      await assert.rejects(client.get("stale"), UnreachableError);
    } finally {
      await own.remove();
    }
  });

  test("a wait ends after an outage of reconnectMs", async () => {
    const own = await Sidecar.start();
    try {
      const client = own.client({ reconnectMs: 100 });
      await client.acquire("gone");
      const waiting = assert.rejects(client.acquire("gone"), ConnectionError);
      await queued(client, "gone", 1);
      await own.end();
      await waiting;
    } finally {
      await own.remove();
    }
  });

  test("close ends it: locks are free, waits throw, later calls throw", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const lock = await a.acquire("close");
    const waiting = assert.rejects(a.acquire("close"), ClientClosedError);
    await queued(b, "close", 1);
    await a.close();
    await waiting;
    assert.equal(lock.lost?.reason, "closed");
    assert.equal((await b.get("close")).state, "free");
    await assert.rejects(a.acquire("close"), ClientClosedError);
    await assert.rejects(a.about(), ClientClosedError);
    await a.close();
    await new Client({ socketPath: "/nowhere" }).close();
  });
});

describe("no sidecar", () => {
  const folder = mkdtempSync(join(tmpdir(), "locksidecar-none-"));
  after(() => rmSync(folder, { recursive: true }));

  async function unreachable(socketPath: string, ...patterns: RegExp[]): Promise<void> {
    await assert.rejects(new Client({ socketPath }).acquire("key"), (error) => {
      assert.ok(error instanceof UnreachableError);
      assert.equal(error.code, "unreachable");
      assert.equal(error.socketPath, socketPath);
      for (const pattern of patterns) {
        assert.match(error.message, pattern);
      }
      return true;
    });
  }

  test("the error has the path and what to check", async () => {
    const missing = join(folder, "missing.sock");
    await unreachable(missing, new RegExp(missing), /no such file/, /LOCKSIDECAR_SOCKET/, /mount/);
    await unreachable(`/${"x".repeat(120)}`, /121 bytes/, /107/);
    const file = join(folder, "file.sock");
    writeFileSync(file, "");
    await unreachable(file, /not a socket/);
  });

  test("a killed sidecar leaves its socket", async () => {
    const own = await Sidecar.start();
    await own.end();
    try {
      await unreachable(own.socketPath, /ECONNREFUSED/, /crashed/);
    } finally {
      await own.remove();
    }
  });

  test("a socket that this user may not use", async () => {
    const root = process.geteuid?.() === 0;
    chmodSync(sidecar.socketPath, 0);
    process.seteuid?.(root ? 65534 : (process.geteuid?.() ?? 0)); // root may use any
    try {
      await unreachable(sidecar.socketPath, /EACCES/, /LOCKSIDECAR_SOCKET_MODE/);
    } finally {
      process.seteuid?.(root ? 0 : (process.geteuid?.() ?? 0));
      chmodSync(sidecar.socketPath, 0o660);
    }
  });

  test("the environment names the socket", () => {
    process.env["LOCKSIDECAR_SOCKET"] = "/from/env.sock";
    assert.equal(new Client().socketPath, "/from/env.sock");
    assert.equal(new Client({ socketPath: "/given" }).socketPath, "/given");
    process.env["LOCKSIDECAR_SOCKET"] = "";
    assert.equal(new Client().socketPath, "/run/locksidecar/locksidecar.sock");
  });

  test("another server listens there", async () => {
    const path = join(folder, "echo.sock");
    const server = createServer((socket) => socket.end("220 mail.example ESMTP\r\n")).listen(path);
    await assert.rejects(new Client({ socketPath: path }).acquire("key"), BadAnswerError);
    server.close();
  });

  test("a suspended sidecar", async () => {
    const own = await Sidecar.start();
    try {
      const lock = await own.client().acquire("suspended");
      const hasty = own.client({ timeoutMs: 200 });
      own.suspend();
      await assert.rejects(hasty.check("suspended", lock.token), { code: "timeout", name: "TimeoutError" });
      own.signal("SIGCONT");
      await lock.check();
    } finally {
      await own.remove();
    }
  });

  test("a sidecar that hangs: its locks are lost, and waits end", async () => {
    const own = await Sidecar.start();
    const usual = Transport.silenceMs;
    try {
      const patient = own.client();
      await patient.acquire("blocked");
      Transport.silenceMs = 500; // for streams that are opened from now on
      const client = own.client({ reconnectMs: 0, timeoutMs: 200 });
      const lock = await client.acquire("hangs");
      const waiting = assert.rejects(client.acquire("blocked"), ConnectionError);
      await queued(patient, "blocked", 1);
      own.suspend();
      assert.ok((await aborted(lock.signal)) instanceof LockLostError);
      await waiting;
      own.signal("SIGCONT");
      await assert.rejects(lock.check(), LockLostError);
    } finally {
      Transport.silenceMs = usual;
      await own.remove();
    }
  });

  test("an app that keeps the event loop busy: its locks stay", async () => {
    const usual = Transport.silenceMs;
    Transport.silenceMs = 300;
    const own = await Sidecar.start();
    try {
      const client = own.client();
      const lock = await client.acquire("busy");
      void client.stop("busy"); // its event waits to be read
      await new Promise(setImmediate);
      for (const end = performance.now() + 600; performance.now() < end; ) {}
      assert.ok((await aborted(lock.stopSignal)) instanceof StopRequestedError);
      await lock.check();
    } finally {
      Transport.silenceMs = usual;
      await own.remove();
    }
  });
});
