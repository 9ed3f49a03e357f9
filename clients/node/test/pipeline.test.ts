// Calls that share a connection, and answers that a real sidecar does not give.
import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import net, { createConnection, createServer, type NetConnectOpts, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { BadAnswerError, ConnectionLostError, TimeoutError } from "locksidecar";
import { endpointOf } from "../dist/endpoint";
import { AnswerParser, maxBody, maxHead, NotHttpError, requestText } from "../dist/http";
import { type Call, Transport } from "../dist/transport";
import { Between } from "./between";
import { patienceMs, Sidecar, until } from "./sidecar";

const ok = "HTTP/1.1 200 OK\r\n";

/** parsed returns the bodies of the answers in some bytes, given in pieces. */
function parsed(bytes: Buffer, size = bytes.length): string[] {
  const bodies: string[] = [];
  const parser = new AnswerParser({
    onHead: ({ status }) => bodies.push(`${status} `),
    onData: (data) => {
      bodies[bodies.length - 1] += data.toString("latin1");
    },
    onEnd: () => {
      bodies[bodies.length - 1] += ".";
    },
  });
  const piece = Buffer.alloc(size);
  for (let at = 0; at < bytes.length; at += size) {
    const length = bytes.copy(piece, 0, at, at + size); // the same buffer, as that of the connections
    parser.push(piece.subarray(0, length));
  }
  return bodies;
}

test("answers are parsed in pieces of any size", () => {
  const text =
    `HTTP/1.1 100 Continue\r\n\r\n${ok}Content-Length: 4\r\n\r\nbody` +
    `${ok}transfer-encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n0a\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n` +
    `HTTP/1.1 204 No Content\r\n\r\n${ok}Content-Length: 0\r\n\r\nHTTP/1.1 404\r\nContent-Length:1\r\n\r\n!`;
  const expected = ["200 body.", "200 abc0123456789.", "204 .", "200 .", "404 !."];
  for (let size = 1; size <= text.length; size++) {
    assert.deepEqual(parsed(Buffer.from(text), size), expected, `pieces of ${size} bytes`);
  }
});

test("an answer whose end is not certain, or that has no limit, is refused", () => {
  for (const text of [
    "220 mail",
    "HTTP/1.0 200 OK\r\n\r\n",
    "HTTP/1.1 2000 OK\r\n\r\n",
    "HTTP/1.1 101 Switching\r\n\r\n",
    `${ok}\r\n`,
    `${ok}Content-Length: 1\r\nContent-Length: 2\r\n\r\n`,
    `${ok}Content-Length: -1\r\n\r\n`,
    `${ok}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n`,
    `${ok}Transfer-Encoding: gzip, chunked\r\n\r\n`,
    `${ok}Content-Length: ${maxBody + 1}\r\n\r\n`,
    `${ok}Content-Length : 1\r\n\r\n`,
    `${ok}Content-Length: 1\r\n folded\r\n\r\n`,
    `${ok}no colon\r\n\r\n`,
    `${ok}X: a\nContent-Length: 1\r\nContent-Length: 0\r\n\r\n`,
    `${ok}X: a\rContent-Length: 1\r\nContent-Length: 0\r\n\r\n`,
    `${ok}X: ${"x".repeat(maxHead)}`,
    `${ok}X: ${"x".repeat(maxHead)}\r\nContent-Length: 0\r\n\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\nx\r\n`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n1\r\nabc`,
    `${ok}Transfer-Encoding: chunked\r\n\r\n${"0".repeat(2000)}`,
  ]) {
    for (const size of [1, 7, text.length]) {
      assert.throws(() => parsed(Buffer.from(text), size), NotHttpError, JSON.stringify(text.slice(0, 80)));
    }
  }
});

test("a request stays in its lines", () => {
  assert.equal(requestText("GET", "/a", { b: "c" }, undefined), "GET /a HTTP/1.1\r\nHost: localhost\r\nb: c\r\n\r\n");
  assert.match(requestText("PUT", "/a", {}, '{"a":"é"}'), /Content-Length: 10\r\n\r\n/);
  assert.throws(() => requestText("GET", "/a b", {}, undefined), TypeError);
  assert.throws(() => requestText("GET", "/a", { b: "c\r\nd: e" }, undefined), TypeError);
  assert.throws(() => requestText("GET", "/a", { "b:": "c" }, undefined), TypeError);
});

describe("calls of one turn", () => {
  const folder = mkdtempSync(join(tmpdir(), "locksidecar-pipeline-"));
  const usual = Transport.behindMs;
  let server: Server;
  let transport: Transport;
  /** The connections so far, each with the names that were asked for. */
  let asked: { socket: Socket; names: string[] }[];
  /** What the server does with the names on a connection, after each that arrives. */
  let answer: (socket: Socket, names: string[]) => void;

  before(() => {
    Transport.behindMs = Number.POSITIVE_INFINITY; // they share a connection
  });
  beforeEach(async () => {
    asked = [];
    answer = () => {};
    server = createServer((socket) => {
      const one = { socket, names: [] as string[] };
      asked.push(one);
      socket.on("error", () => {});
      socket.on("data", (data) => {
        for (const [, name] of data.toString().matchAll(/GET \/(\w+)/g)) {
          one.names.push(name as string);
          answer(socket, one.names);
        }
      });
    });
    const path = join(folder, "sock");
    await once(server.listen(path), "listening");
    transport = new Transport(endpointOf({ socketPath: path }));
  });
  afterEach(async () => {
    transport.close();
    for (const { socket } of asked) {
      socket.destroy();
    }
    await once(server.close(), "close");
  });
  after(() => {
    Transport.behindMs = usual;
    rmSync(folder, { recursive: true });
  });

  const call = (name: string, more: Partial<Call> = {}): Promise<unknown> =>
    transport.call({ method: "GET", path: `/${name}`, shares: true, timeoutMs: patienceMs, ...more });
  const bodyOf = (name: string): string => `${ok}Content-Length: ${name.length + 2}\r\n\r\n"${name}"`;
  const names = (): string[] => asked.map((one) => one.names.join());
  const lost = { name: "ConnectionLostError" };

  /** whenAll answers when `count` names have arrived on a connection. */
  function whenAll(count: number, act: (socket: Socket, names: string[]) => void): void {
    answer = (socket, got) => got.length === count && act(socket, got);
  }

  test("share a connection, and each has its own answer, also byte by byte", async () => {
    whenAll(3, async (socket, got) => {
      for (const byte of got.map(bodyOf).join("")) {
        socket.write(byte);
        await new Promise(setImmediate);
      }
    });
    assert.deepEqual(await Promise.all(["a", "b", "c"].map((name) => call(name))), ["a", "b", "c"]);
    assert.deepEqual(names(), ["a,b,c"]);
  });

  test("none goes behind a call of an earlier turn", async () => {
    answer = (socket, got) => got[0] !== "slow" && socket.write(bodyOf(got.at(-1) as string));
    const slow = assert.rejects(call("slow"), lost);
    await until("it has arrived", () => names().join() === "slow");
    assert.deepEqual(await Promise.all([call("a"), call("b")]), ["a", "b"]);
    assert.equal(await call("c"), "c");
    assert.deepEqual(names(), ["slow", "a,b,c"]);
    transport.close();
    await slow;
  });

  test("a call that may wait has a connection of its own", async () => {
    answer = (socket, got) => socket.write(bodyOf(got.at(-1) as string));
    await Promise.all([call("a", { shares: false }), call("b"), call("c"), call("d", { shares: false })]);
    assert.deepEqual(names().sort(), ["a", "b,c", "d"]);
  });

  test("each has a connection of its own if the sidecar takes long for one", async () => {
    Transport.behindMs = 1;
    const own = new Transport(transport.endpoint);
    answer = (socket, got) => setTimeout(() => socket.write(bodyOf(got.at(-1) as string)), 50);
    const ask = (name: string) => own.call({ method: "GET", path: `/${name}`, shares: true });
    await ask("a");
    await Promise.all(["b", "c", "d"].map(ask));
    assert.deepEqual(names().sort(), ["a,b", "c", "d"].sort());
    own.close();
    Transport.behindMs = Number.POSITIVE_INFINITY;
  });

  for (const what of ["is under way", "was given up"]) {
    test(`each has a connection of its own while a slow call ${what}`, async (t) => {
      let idle = 0;
      t.mock.method(performance, "eventLoopUtilization", () => ({ idle, active: 0, utilization: 0 }));
      Transport.behindMs = 10;
      const own = new Transport(transport.endpoint);
      answer = (socket, got) => got.at(-1) !== "slow" && socket.write(bodyOf(got.at(-1) as string));
      const ask = (name: string, more: Partial<Call> = {}) =>
        own.call({ method: "GET", path: `/${name}`, shares: true, ...more });
      const controller = new AbortController();
      const slow = ask("slow", { signal: controller.signal }).catch(() => {});
      await until("it has arrived", () => names().join() === "slow");
      await Promise.all(["a", "b"].map((name) => ask(name)));
      assert.deepEqual(names(), ["slow", "a,b"]);
      idle += 11;
      if (what === "was given up") {
        controller.abort();
        await until("it is closed", () => asked[0]?.socket.destroyed === true);
      }
      await Promise.all(["c", "d"].map((name) => ask(name)));
      assert.deepEqual(names(), ["slow", "a,b,c", "d"]);
      own.close();
      await slow;
      Transport.behindMs = Number.POSITIVE_INFINITY;
    });
  }

  test("a connection that the sidecar has ended is not taken", async (t) => {
    let ended: Promise<unknown> | undefined;
    let next: Promise<unknown> | undefined;
    const connect = net.createConnection;
    t.mock.method(net, "createConnection", (options: NetConnectOpts) => {
      const socket = connect(options);
      ended ??= once(socket, "end");
      socket.once("end", () => {
        next ??= call("b"); // it is not closed yet
      });
      return socket;
    });
    answer = (socket, got) => socket.write(bodyOf(got.at(-1) as string));
    assert.equal(await call("a"), "a");
    asked[0]?.socket.end();
    await ended;
    assert.equal(await next, "b");
    assert.deepEqual(names(), ["a", "b"]);
  });

  for (const [what, code] of Object.entries({ nothing: "EPIPE", all: "ECONNRESET" })) {
    test(`the sidecar closes a kept connection, and ${what} of a call was sent`, async (t) => {
      let used = 0;
      const connect = net.createConnection;
      t.mock.method(net, "createConnection", (options: NetConnectOpts) => {
        const socket = connect(options);
        const write = socket.write;
        socket.write = (...of: unknown[]) => {
          if (++used !== 2) {
            return Reflect.apply(write, socket, of) as boolean;
          }
          socket.destroy(Object.assign(new Error(code), { code, syscall: code === "EPIPE" ? "write" : "read" }));
          return false;
        };
        return socket;
      });
      answer = (socket, got) => socket.write(bodyOf(got.at(-1) as string));
      assert.equal(await call("a"), "a");
      const next = call("b");
      await (code === "EPIPE" ? next : assert.rejects(next, lost));
      assert.deepEqual(names(), code === "EPIPE" ? ["a", "b"] : ["a"]);
    });
  }

  test("the connection dies: what was answered is known, the rest is not", async () => {
    whenAll(3, (socket, [first]) => socket.end(bodyOf(first as string)));
    const calls = ["a", "b", "c"].map((name) => call(name));
    const ends = await Promise.allSettled(calls);
    assert.deepEqual(ends[0], { status: "fulfilled", value: "a" });
    for (const end of ends.slice(1)) {
      assert.ok(end.status === "rejected" && end.reason instanceof ConnectionLostError);
    }
    answer = (socket, got) => socket.write(bodyOf(got.at(-1) as string));
    assert.equal(await call("d"), "d");
    assert.deepEqual(names(), ["a,b,c", "d"]);
  });

  test("an answer without an end: it and those behind it time out", async () => {
    whenAll(3, (socket, [first]) => socket.write(`${bodyOf(first as string)}${ok}Content-Length: 9\r\n\r\n"b`));
    const ends = await Promise.allSettled(["a", "b", "c"].map((name) => call(name, { timeoutMs: 300 })));
    assert.equal(ends[0]?.status, "fulfilled");
    for (const end of ends.slice(1)) {
      assert.ok(end.status === "rejected" && end.reason instanceof TimeoutError);
    }
    await until("the connection is closed", () => asked[0]?.socket.destroyed === true);
  });

  test("an abort ends one, and the others go on", async () => {
    let go = (): void => {};
    whenAll(3, (socket, got) => {
      go = () => socket.write(got.map(bodyOf).join(""));
    });
    const controller = new AbortController();
    let late: Promise<unknown> | undefined;
    let over = false;
    const onLate = (settled: Promise<void>): void => {
      late = settled.then(() => {
        over = true;
      });
    };
    const [a, b, c] = [call("a"), call("b", { signal: controller.signal, onLate }), call("c")];
    await until("all have arrived", () => names().join() === "a,b,c");
    controller.abort(new RangeError("enough"));
    await assert.rejects(b, RangeError);
    await new Promise(setImmediate);
    assert.ok(late && !over, "the sidecar may carry it out");
    go();
    assert.deepEqual(await Promise.all([a, c]), ["a", "c"]);
    await late;
    answer = (socket, got) => socket.write(bodyOf(got.at(-1) as string));
    assert.equal(await call("d"), "d");
    assert.deepEqual(names(), ["a,b,c,d"]);
  });

  test("close ends the calls of the turn, too", async () => {
    const calls = ["a", "b"].map((name) => assert.rejects(call(name), lost));
    transport.close();
    await Promise.all(calls);
    assert.deepEqual(asked, []);
  });

  test("an abort of all closes the connection", async () => {
    const controller = new AbortController();
    const calls = ["a", "b"].map((name) => assert.rejects(call(name, { signal: controller.signal }), RangeError));
    await until("all have arrived", () => names().join() === "a,b");
    controller.abort(new RangeError("enough"));
    await Promise.all(calls);
    await until("it is closed", () => asked[0]?.socket.destroyed === true);
  });

  test("an answer that is not HTTP: the rest of the connection is not read", async () => {
    whenAll(3, (socket, [first]) => socket.write(`${bodyOf(first as string)}nonsense\r\n\r\n${bodyOf("x")}`));
    const ends = await Promise.allSettled(["a", "b", "c"].map((name) => call(name)));
    assert.equal(ends[0]?.status, "fulfilled");
    assert.ok(ends[1]?.status === "rejected" && ends[1].reason instanceof BadAnswerError);
    assert.ok(ends[2]?.status === "rejected" && ends[2].reason instanceof ConnectionLostError);
  });

  test("chunks without an end are a bad answer", async () => {
    answer = (socket) => {
      socket.write(`${ok}Transfer-Encoding: chunked\r\n\r\n${(maxBody + 1).toString(16)}\r\n`);
      socket.write(Buffer.alloc(maxBody + 1, " "));
    };
    await assert.rejects(call("a"), BadAnswerError);
  });

  test("an answer that nobody asked for is never taken for another", async () => {
    answer = (socket) => socket.write(bodyOf("a") + bodyOf("nobody asked for this"));
    assert.equal(await call("a"), "a");
    answer = (socket) => socket.write(bodyOf("b"));
    assert.equal(await call("b"), "b");
    answer = (socket) => socket.write(`${bodyOf("c")}HTT`); // nor the start of one
    assert.equal(await call("c"), "c");
    answer = (socket, got) => socket.write(bodyOf(got.at(-1) as string));
    assert.equal(await call("d"), "d");
    assert.deepEqual(names(), ["a", "b,c", "d"]);
  });

  test("the sidecar closes after an answer: those behind it are sent again, each on its own", async () => {
    answer = (socket, got) => {
      if (got.length === 3) {
        socket.end(bodyOf(got[0] as string).replace("\r\n", "\r\nConnection: close\r\n"));
      } else if (asked.length > 1) {
        socket.write(bodyOf(got.at(-1) as string));
      }
    };
    assert.deepEqual(await Promise.all(["a", "b", "c"].map((name) => call(name))), ["a", "b", "c"]);
    assert.deepEqual(names().sort(), ["a,b,c", "b", "c"]);
  });
});

describe("locks of one turn", () => {
  let sidecar: Sidecar;
  const usual = Transport.behindMs;
  before(async () => {
    Transport.behindMs = Number.POSITIVE_INFINITY;
    sidecar = await Sidecar.start({ TTL: "1h" });
  });
  afterEach(() => sidecar.closeClients());
  after(async () => {
    Transport.behindMs = usual;
    await sidecar.close();
  });

  // Proves: client interrupts
  test("an abort while the requests are on their way leaves no grant, and costs the others nothing", async () => {
    let held: (() => void) | undefined;
    const path = `${sidecar.socketPath}.gate`;
    const gate = createServer((client) => {
      const onward = createConnection(sidecar.socketPath);
      onward.pipe(client);
      client.on("data", (data) => {
        if (data.toString("latin1").includes("PUT /v1/locks/turn")) {
          held = () => onward.write(data);
        } else {
          onward.write(data);
        }
      });
      for (const socket of [client, onward]) {
        socket.on("error", () => {}).on("close", () => [client, onward].forEach((one) => void one.destroy()));
      }
    });
    await once(gate.listen(path), "listening");
    const client = sidecar.client({ socketPath: path });
    await client.connect();
    const controller = new AbortController();
    const ask = (key: string, signal?: AbortSignal) =>
      client.acquire(key, { waitMs: 0, bind: "ttl", ttlMs: 3_600_000, signal });
    const calls = [ask("turn:a"), ask("turn:b", controller.signal), ask("turn:c")] as const;
    await until("they are on their way", () => held !== undefined);
    const refused = assert.rejects(calls[1], RangeError);
    controller.abort(new RangeError("enough"));
    const other = sidecar.client();
    await other.get("turn:b"); // a withdrawal that did not wait would be carried out by now
    await client.get("turn:b");
    held?.();
    const [a, c] = await Promise.all([calls[0], calls[2]]);
    await refused;
    await (await other.acquire("turn:b", { waitMs: patienceMs })).release();
    await a.release();
    await c.release();
    await client.close();
    gate.close();
  });

  // Proves: client lost answer
  test("a connection that dies with three acquires under way leaves no grant", async () => {
    const between = await Between.start(sidecar.socketPath);
    const [client, other] = [sidecar.client({ socketPath: between.socketPath }), sidecar.client()];
    await client.connect();
    const keys = ["dies:a", "dies:b", "dies:c"];
    let seen = 0;
    between.fate = (head) => {
      seen += head.split("PUT /v1/locks/").length - 1;
      return head.startsWith("PUT") ? "mute" : undefined;
    };
    const how = { waitMs: 0, bind: "ttl", ttlMs: 3_600_000 } as const;
    const ends = await Promise.allSettled(keys.map((key) => client.acquire(key, how)));
    for (const end of ends) {
      assert.ok(end.status === "rejected" && end.reason instanceof ConnectionLostError);
    }
    assert.equal(seen, 6, "each is asked for again once");
    for (const key of keys) {
      await (await other.acquire(key, { waitMs: patienceMs })).release();
    }
    await client.close();
    between.close();
  });

  test("a check and an extension have connections of their own, because they prove the lock", async () => {
    const between = await Between.start(sidecar.socketPath);
    const client = sidecar.client({ socketPath: between.socketPath });
    const [a, b, c] = await Promise.all(
      ["p:a", "p:b", "p:c"].map((key) => client.acquire(key, { bind: "ttl", ttlMs: 3_600_000 })),
    );
    const written: string[] = [];
    between.fate = (head) => {
      written.push(
        [...head.matchAll(/[A-Z]+ \/v1\/locks\/p%3A\w/g)].map(([what]) => what.replace("/v1/locks/p%3A", "")).join(),
      );
      return undefined;
    };
    await Promise.all([
      client.tryAcquire("p:d"),
      a?.extend(3_600_000),
      b?.check(),
      c?.release(),
      client.tryAcquire("p:e"),
    ]);
    assert.deepEqual(written.sort(), ["DELETE c,PUT d,PUT e", "PATCH a", "PATCH b"]);
    await client.close();
    between.close();
  });

  test("64 callers exclude each other", async () => {
    const [a, b] = [sidecar.client(), sidecar.client()];
    const holders = new Map<string, number>();
    let granted = 0;
    const work = async (i: number): Promise<void> => {
      const key = `many:${i % 8}`;
      for (let times = 0; times < 20; times++) {
        const got = await (i % 2 ? a : b).tryAcquire(key);
        if (got.granted) {
          assert.equal(holders.get(key) ?? 0, 0);
          holders.set(key, 1);
          granted++;
          await new Promise(setImmediate);
          holders.set(key, 0);
          await got.lock.release();
        }
      }
    };
    await Promise.all(Array.from({ length: 64 }, (_, i) => work(i)));
    assert.ok(granted > 0);
  });
});
