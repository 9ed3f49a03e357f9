import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { channel, subscribe, unsubscribe } from "node:diagnostics_channel";
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import {
  type AcquireOptions,
  BadAnswerError,
  Client,
  ClientClosedError,
  ConnectionError,
  type Lock,
  LockLostError,
  NotHolderError,
  StopRequestedError,
  UnreachableError,
} from "locksidecar";
import { findBinary } from "locksidecar/testing";
import { usualSocket } from "../dist/socket";
import { Transport } from "../dist/transport";
import { Between, type Fate } from "./between";
import { aborted, patienceMs, queued, Sidecar, until } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ TTL: "1h" });
});
afterEach(() => sidecar.closeClients());
after(() => sidecar.close());

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
    const name = "locksidecar.answer"; // published when it is parsed
    assert.equal(channel(name).hasSubscribers, false);
    const got = client.acquire("just", { signal: controller.signal });
    subscribe(name, answered);
    await assert.rejects(got, RangeError);
    unsubscribe(name, answered);
    assert.equal((await client.get("just")).state, "free");
  });
});

describe("lost requests and answers", () => {
  let between: Between;
  before(async () => {
    between = await Between.start(sidecar.socketPath);
  });
  afterEach(() => {
    between.fate = () => undefined;
  });
  after(() => between.close());

  /** lose decides about the first requests that match, and then lets all pass. */
  function lose(times: number, is: RegExp, fate: Fate): void {
    let left = times;
    between.fate = (head) => (is.test(head) && left-- > 0 ? fate : undefined);
  }

  const connectionLost = { code: "connection_lost" };
  const wait = { waitMs: patienceMs };

  // Proves: client lost answer
  test("a release that did not arrive is repeated, also if nobody has the lock any more", async () => {
    const [a, b] = [sidecar.client({ socketPath: between.socketPath }), sidecar.client()];
    lose(2, /^DELETE/, "cut");
    await assert.rejects(
      a.lock("kept", () => {}),
      connectionLost,
    );
    await (await b.acquire("kept", wait)).release();
    lose(2, /^DELETE/, "cut");
    const ttl = await a.acquire("kept", { bind: "ttl", ttlMs: 3_600_000 });
    await assert.rejects(ttl.release(), connectionLost);
    await (await b.acquire("kept", wait)).release();
  });

  // Proves: client lost answer
  test("a release whose answer was lost may be called again", async () => {
    const [a, b] = [sidecar.client({ socketPath: between.socketPath }), sidecar.client()];
    const reentrant = { reentrant: true, owner: "o" };
    for (const options of [{}, { bind: "ttl", ttlMs: 3_600_000 }, reentrant] as AcquireOptions[]) {
      const outer = options.reentrant ? await a.acquire("again", options) : undefined;
      const lock = await a.acquire("again", options);
      lose(1, new RegExp(`^DELETE .*[?&]token=${lock.token}\\b`), "mute"); // not what the last lock still owes
      await assert.rejects(lock.release(), connectionLost);
      if (options.bind === "ttl") {
        await (await b.acquire("again", wait)).release(); // the store has forgotten the end of the lock
      }
      assert.equal((await lock.release()).released, outer === undefined);
      await outer?.check();
      await outer?.release();
      assert.equal((await a.get("again")).state, "free");
    }
  });

  // Proves: client lost answer
  test("a grant whose answer was lost is withdrawn, also if the withdrawal does not arrive at first", async () => {
    const [a, b] = [sidecar.client({ socketPath: between.socketPath }), sidecar.client()];
    await a.connect();
    for (const bind of ["session", "ttl"] as const) {
      let puts = 2;
      let deletes = 2;
      between.fate = (head) => {
        if (head.startsWith("PUT") && puts-- > 0) {
          return "mute";
        }
        return head.startsWith("DELETE") && deletes-- > 0 ? "cut" : undefined;
      };
      await assert.rejects(a.acquire("unknown", { bind, ttlMs: 3_600_000, waitMs: 0 }), connectionLost);
      await (await b.acquire("unknown", wait)).release();
      assert.ok(puts < 0 || deletes < 0);
    }
  });

  // Proves: client given up
  test("a lock that is given up by the own clock is released when the sidecar answers again", async () => {
    const [a, b] = [sidecar.client({ socketPath: between.socketPath, ttlMs: 1000, timeoutMs: 500 }), sidecar.client()];
    const lock = await a.acquire("silent");
    await a.acquire("silent:2", { reentrant: true, owner: "o" });
    await a.acquire("silent:2", { reentrant: true, owner: "o" });
    between.fate = () => "swallow";
    const reason = await aborted(lock.signal);
    assert.ok(reason instanceof LockLostError && reason.reason === "expired");
    assert.equal((await b.get("silent")).state, "held");
    between.fate = () => undefined;
    for (const key of ["silent", "silent:2"]) {
      await (await b.acquire(key, wait)).release();
    }
    await (await a.acquire("silent", wait)).release();
  });

  // Proves: client given up
  test("a session that the client has given up ends in the sidecar, too", async () => {
    const [a, b] = [sidecar.client({ socketPath: between.socketPath }), sidecar.client()];
    const [held, busy] = [await a.acquire("ended"), await b.acquire("ended:2")];
    const waiting = a.acquire("ended:2");
    await queued(b, "ended:2", 1);
    let session = "";
    between.fate = (head) => {
      session = /^Lock-Session: (.*)\r$/im.exec(head)?.[1] ?? "";
      return undefined;
    };
    await held.check();
    assert.ok(session);
    // One answer that the session is over, though it is not.
    between.fate = (head) => (head.startsWith("PUT /v1/locks/other") && head.includes(session) ? "ended" : undefined);
    const other = await a.acquire("other", { waitMs: 0 });
    between.fate = () => undefined;
    assert.ok((await aborted(held.signal)) instanceof LockLostError);
    await (await b.acquire("ended", wait)).release();
    await busy.release();
    await (await waiting).release();
    await other.release();
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
      await own.kill();
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
      await own.close();
    }
  });

  test("a restart that drains: a wait goes on with the next sidecar", async () => {
    const own = await Sidecar.start({ DRAIN_TIMEOUT: "30s" });
    try {
      const [a, b] = [own.client(), own.client()];
      const held = await a.acquire("drain");
      const waiting = b.acquire("drain");
      await queued(a, "drain", 1);
      const ended = own.stop();
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
      await own.close();
    }
  });

  test("the next call replaces a dead kept connection", async () => {
    const own = await Sidecar.start();
    try {
      const client = own.client();
      await client.acquire("stale");
      own.killNow();
      // Not a ConnectionLostError, because the call is repeated over a new connection.
      await assert.rejects(client.get("stale"), UnreachableError);
    } finally {
      await own.close();
    }
  });

  test("also the next call without a session", async () => {
    const own = await Sidecar.start();
    try {
      const client = own.client();
      await client.get("stale");
      own.killNow();
      await assert.rejects(client.get("stale"), UnreachableError);
    } finally {
      await own.close();
    }
  });

  test("a wait ends after an outage of reconnectMs", async () => {
    const own = await Sidecar.start();
    try {
      const client = own.client({ reconnectMs: 100 });
      await client.acquire("gone");
      const waiting = assert.rejects(client.acquire("gone"), ConnectionError);
      await queued(client, "gone", 1);
      await own.kill();
      await waiting;
    } finally {
      await own.close();
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
    await assert.rejects(a.describe(), ClientClosedError);
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
      assert.equal(error.address, socketPath);
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
    await own.kill();
    try {
      await unreachable(own.socketPath, /ECONNREFUSED/, /crashed/);
    } finally {
      await own.close();
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
    assert.equal(new Client().address, "/from/env.sock");
    assert.equal(new Client({ socketPath: "/given" }).address, "/given");
  });

  test("without a variable the socket is in the home where no pod is", () => {
    const pod = "/run/locksidecar/locksidecar.sock";
    const own = "/home/ada/.locksidecar/locksidecar.sock";
    const HOME = "/home/ada";
    for (const [environment, folders, want] of [
      [{ HOME }, [], own],
      [{ HOME, LOCKSIDECAR_SOCKET: "" }, [], own],
      [{ HOME }, ["/run/locksidecar"], pod],
      [{}, [], pod],
      [{ HOME: "relative" }, [], pod],
      [{ HOME, LOCKSIDECAR_SOCKET: "/given" }, ["/run/locksidecar"], "/given"],
    ] as const) {
      const exists = (path: string) => (folders as readonly string[]).includes(path);
      assert.equal(usualSocket(environment, exists), want, JSON.stringify({ environment, folders }));
    }
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
      own.hang();
      await assert.rejects(hasty.check("suspended", lock.token), { code: "timeout", name: "TimeoutError" });
      own.resume();
      await lock.check();
    } finally {
      await own.close();
    }
  });

  // Proves: client interrupts
  test("an abort does not wait for the next session, which hangs", async () => {
    const own = await Sidecar.start();
    const client = own.client();
    await own.client().acquire("next");
    const controller = new AbortController();
    const waiting = client.acquire("next", { signal: controller.signal });
    await queued(own.client(), "next", 1);
    await own.kill();
    rmSync(own.socketPath, { force: true });
    let calls = 0;
    const sockets: Socket[] = [];
    const hangs = createServer((socket) => {
      sockets.push(socket.on("error", () => {}).on("data", () => calls++));
    });
    hangs.listen(own.socketPath);
    await until("it opens the next session", () => calls > 0);
    const began = performance.now();
    controller.abort(new RangeError("enough"));
    await assert.rejects(waiting, RangeError);
    const tookMs = performance.now() - began;
    hangs.close();
    for (const socket of sockets) {
      socket.destroy();
    }
    await own.close();
    assert.ok(tookMs < 5000, `it took ${tookMs} ms`);
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
      own.hang();
      assert.ok((await aborted(lock.signal)) instanceof LockLostError);
      await waiting;
      own.resume();
      await assert.rejects(lock.check(), LockLostError);
    } finally {
      Transport.silenceMs = usual;
      await own.close();
    }
  });

  // Proves: client own clock
  test("a sidecar that hangs: a leader stops before its lease ends, by its own clock", async () => {
    const own = await Sidecar.start({ TTL: "3s" });
    try {
      const client = own.client();
      const long = await client.acquire("long", { ttlMs: 3_600_000 });
      let terms = 0;
      const second = client.lead("leader", async ({ lock, signal }) => {
        if (++terms > 1) {
          return lock;
        }
        await queued(client, "leader", 0);
        const began = performance.now();
        own.hang();
        const reason = await aborted(signal);
        assert.ok(reason instanceof LockLostError && reason.reason === "expired");
        assert.match(reason.message, /did not answer before the end of its lease/);
        assert.ok(performance.now() - began < Transport.silenceMs / 2, "long before the connection is given up");
        own.resume();
        throw reason;
      });
      const lock = (await second) as Lock;
      assert.equal(terms, 2);
      await assert.rejects(lock.check(), NotHolderError, "released at the end of its term");
      await long.check(); // its lease goes on
      assert.equal((await client.acquire("leader", { waitMs: patienceMs })).lost, null);
    } finally {
      await own.close();
    }
  });

  test("a lock that was given up while the sidecar hung is free when it goes on", async () => {
    const own = await Sidecar.start({ TTL: "1h" });
    try {
      const [a, b] = [own.client({ timeoutMs: 300 }), own.client()];
      const lock = await a.acquire("released");
      const nested = await a.acquire("entered", { reentrant: true, owner: "o" });
      const granted = await a.acquire("granted");
      const controller = new AbortController();
      const busy = await b.acquire("busy");
      const waiting = assert.rejects(a.acquire("busy", { signal: controller.signal }), RangeError);
      await queued(b, "busy", 1);
      await assert.rejects(
        a.lock("dropped", () => own.hang()),
        { code: "timeout" },
      );
      controller.abort(new RangeError("enough"));
      for (const one of [lock, nested]) {
        await assert.rejects(one.release(), { code: "timeout" });
      }
      assert.equal(lock.lost, null);
      await waiting;
      own.resume();
      for (const key of ["dropped", "released", "entered"]) {
        await (await b.acquire(key, { waitMs: patienceMs })).release();
      }
      assert.equal((await lock.release()).released, true, "it tells what the client has done");
      assert.equal((await nested.release()).released, true);
      await busy.release();
      await (await b.acquire("busy", { waitMs: patienceMs })).release();
      await granted.check();
    } finally {
      await own.close();
    }
  });

  // Proves: client own clock
  test("an app that keeps the event loop busy for longer than its lease: its locks stay", async () => {
    const own = await Sidecar.start();
    try {
      const client = own.client({ ttlMs: 500 });
      const lock = await client.acquire("busy");
      for (let times = 0; times < 3; times++) {
        for (const end = performance.now() + 1000; performance.now() < end; ) {}
        await lock.check();
      }
      assert.equal(lock.lost, null);
    } finally {
      await own.close();
    }
  });

  test("an app that keeps the event loop busy: its locks stay", async () => {
    const usual = Transport.silenceMs;
    Transport.silenceMs = 300;
    const own = await Sidecar.start();
    try {
      const client = own.client();
      const lock = await client.acquire("busy");
      const env = { ...process.env, ...own.env };
      execFileSync(findBinary(), ["stop", "busy"], { env, stdio: "ignore" }); // its event waits to be read
      for (const end = performance.now() + 600; performance.now() < end; ) {}
      assert.ok((await aborted(lock.stopSignal)) instanceof StopRequestedError);
      await lock.check();
    } finally {
      Transport.silenceMs = usual;
      await own.close();
    }
  });
});
