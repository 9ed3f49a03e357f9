// The sidecar over TCP, with TLS of a CA that the test makes, and a token.
import assert from "node:assert/strict";
import type { ChildProcess } from "node:child_process";
import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer, type Server, Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { createServer as createTlsServer } from "node:tls";
import { inspect } from "node:util";
import { Worker } from "node:worker_threads";
import {
  Client,
  type ClientOptions,
  ConnectionLostError,
  ForbiddenError,
  InvalidRequestError,
  LockHeldError,
  TimeoutError,
  UnreachableError,
} from "locksidecar";
import { Endpoint } from "../dist/endpoint";
import { Authority, plain, portOf, tcpToken, write } from "./certificates";
import { child, line, starved } from "./processes";
import { aborted, patienceMs, queued, Sidecar, until } from "./sidecar";

const otherToken = "fedcba9876543210fedcba9876543210";
const folder = mkdtempSync(join(tmpdir(), "locksidecar-tcp-"));
const ca = new Authority(join(folder, "ca"));
const token = write(folder, "token", `${tcpToken}\n${otherToken}\n`);
const limited = { timeout: 2 * patienceMs };
after(() => rmSync(folder, { recursive: true }));

/** listening starts a server that is no sidecar, and returns its port. */
async function listening(server: Server): Promise<number> {
  await once(server.listen(0, "127.0.0.1"), "listening");
  return (server.address() as AddressInfo).port;
}

describe("with TLS", () => {
  let sidecar: Sidecar;
  let settings: ClientOptions;
  before(async () => {
    sidecar = await Sidecar.start({ TTL: "1h", ...ca.settings() });
    settings = {
      socketPath: undefined,
      url: `https://localhost:${await portOf(sidecar)}`,
      tokenFile: token,
      caFile: ca.file,
    };
  });
  after(() => sidecar.close());

  test("everything works as on the socket: locks, waits, events, losses", limited, async () => {
    const own = await Sidecar.start(ca.settings());
    try {
      const where = { ...settings, url: `https://localhost:${await portOf(own)}` };
      const [one, two] = [own.client(where), own.client({ ...where, reconnectMs: 0 })];
      const lock = await one.acquire("k");
      await assert.rejects(two.acquire("k", { waitMs: 0 }), LockHeldError);
      const waiting = two.acquire("k", { waitMs: patienceMs });
      await queued(one, "k", 1);
      await lock.release();
      const second = await waiting;
      assert.ok(second.token > lock.token);
      const events = two.events("k");
      assert.equal((await events.next()).value?.type, "state");
      await events.return?.();
      await own.lose("k");
      await aborted(second.signal);
      const kept = await one.acquire("k");
      await own.kill();
      await aborted(kept.signal);
      assert.equal(kept.lost?.reason, "disconnected");
      assert.ok(!own.log.includes(tcpToken), own.log);
    } finally {
      await own.close();
    }
  });

  test("calls of one turn share connections", limited, async () => {
    const client = sidecar.client(settings);
    await client.connect();
    const keys = Array.from({ length: 64 }, (_, index) => `shared ${index}`);
    for (let round = 0; round < 3; round++) {
      const got = await Promise.all(keys.map((key) => client.tryAcquire(key)));
      await Promise.all(got.map((one) => (one.granted ? one.lock.release() : assert.fail(one.key))));
    }
    const wrong = sidecar.client({ ...settings, tokenFile: write(folder, "wrong", otherToken) });
    for (const call of await Promise.allSettled(keys.map((key) => wrong.get(key)))) {
      assert.ok(call.status === "rejected" && call.reason instanceof ForbiddenError, inspect(call));
    }
  });

  // Proves: client many connections
  test("more calls at a time than the sidecar takes new connections", limited, async () => {
    const client = sidecar.client(settings);
    const keys = Array.from({ length: 200 }, (_, index) => `many ${index}`);
    const got = await Promise.all(keys.map((key) => client.tryAcquire(key)));
    await Promise.all(got.map((one) => (one.granted ? one.lock.release() : assert.fail(one.key))));
    const first = await client.acquire("many");
    const waiting = Promise.all(keys.map(async () => (await client.acquire("many")).release()));
    await queued(client, "many", keys.length);
    await first.release();
    await waiting;
  });

  test("an aborted wait leaves nothing", limited, async () => {
    const [one, two] = [sidecar.client(settings), sidecar.client(settings)];
    const lock = await one.acquire("abort");
    const abort = new AbortController();
    const waiting = two.acquire("abort", { signal: abort.signal });
    await queued(one, "abort", 1);
    abort.abort(new Error("enough"));
    await assert.rejects(waiting, /enough/);
    await queued(one, "abort", 0);
    await lock.release();
    assert.equal((await one.get("abort", { fresh: true })).state, "free");
  });

  /** environment lets threads and processes find the sidecar as an app does. */
  async function environment<T>(run: () => Promise<T>): Promise<T> {
    const { url, tokenFile, caFile } = settings as Required<ClientOptions>;
    const variables = { LOCKSIDECAR_URL: url, LOCKSIDECAR_TOKEN_FILE: tokenFile, LOCKSIDECAR_CA_FILE: caFile };
    Object.assign(process.env, variables);
    try {
      return await run();
    } finally {
      for (const name in variables) {
        delete process.env[name];
      }
    }
  }

  test("worker threads exclude each other, and a terminated one frees its locks", limited, () =>
    environment(async () => {
      const file = join(folder, "threads");
      writeFileSync(file, "0");
      const start = (workerData: object) => new Worker(join(__dirname, "children", "thread.js"), { workerData });
      const counting = [start({ file, times: 25 }), start({ file, times: 25 })];
      const codes = await Promise.all(counting.map(async (worker) => (await once(worker, "exit"))[0]));
      assert.deepEqual(codes, [0, 0]);
      assert.equal(readFileSync(file, "utf8"), "50");
      const holder = start({ hold: "thread" });
      const [held] = (await once(holder, "message")) as [number];
      const waiting = sidecar.client(settings).acquire("thread", { waitMs: patienceMs });
      await holder.terminate();
      assert.ok((await waiting).token > held);
    }),
  );

  test("the workers of a cluster exclude each other, and the primary keeps its lock", limited, () =>
    environment(async () => {
      const file = join(folder, "cluster");
      writeFileSync(file, "0");
      const primary = child("cluster", "", file, "25");
      const exit = once(primary, "exit");
      assert.deepEqual(JSON.parse(await line(primary)), [0, 0]);
      assert.deepEqual(await exit, [0, null]);
      assert.equal(readFileSync(file, "utf8"), "50");
    }),
  );

  test("kill -9 of a process that holds a lock frees it at once", limited, () =>
    environment(async () => {
      const holder: ChildProcess = child("holder", "", "killed");
      const held = Number(await line(holder));
      const waiting = sidecar.client(settings).acquire("killed", { waitMs: patienceMs });
      holder.kill("SIGKILL");
      assert.ok((await waiting).token > held); // the lease would last an hour
    }),
  );

  // Proves: client descriptors
  test("waiting calls that take all descriptors do not keep the release of the holder", limited, () =>
    environment(async () => {
      const few = starved("starved", 60, "");
      const exit = once(few, "exit");
      const { granted, name, message } = JSON.parse(await line(few));
      assert.equal(granted, 100);
      assert.equal(name, "UnreachableError");
      assert.match(message, /no file descriptor left .*https:\/\/localhost:\d+ \(EMFILE\): this process may have 60/);
      assert.deepEqual(await exit, [0, null]);
    }),
  );

  test("an idle client with a lock and a watch does not keep the process alive", limited, () =>
    environment(async () => {
      const idle = child("idle", "");
      const exit = once(idle, "exit");
      assert.equal(await line(idle), "idle");
      assert.deepEqual(await exit, [0, null]);
    }),
  );

  test("the token is in no error, and in nothing that an app can subscribe to", limited, async () => {
    const seen: unknown[] = [];
    const note = (message: unknown) => seen.push(message);
    subscribe("locksidecar.request", note);
    subscribe("locksidecar.answer", note);
    try {
      const client = sidecar.client(settings);
      const lock = await client.acquire("secret");
      const error = await client.tryAcquire("secret");
      await lock.release();
      await assert.rejects(
        client.check("secret", lock.token),
        (lost) => !inspect(lost, { depth: 9 }).includes(tcpToken),
      );
      assert.ok(seen.length > 0);
      for (const shown of [seen, error, client]) {
        assert.ok(!inspect(shown, { depth: 9, showHidden: true }).includes(tcpToken));
      }
    } finally {
      unsubscribe("locksidecar.request", note);
      unsubscribe("locksidecar.answer", note);
    }
  });

  test("when the network says that the peer is gone, waiting calls end, too", limited, async (t) => {
    const [one, two] = [sidecar.client(settings), sidecar.client({ ...settings, reconnectMs: 0 })];
    await one.acquire("vanished");
    const connect = t.mock.method(Socket.prototype, "connect");
    await two.connect();
    const sockets = connect.mock.calls.map((call) => call.this as Socket);
    connect.mock.restore();
    const mine = await two.acquire("vanished, mine");
    const waiting = assert.rejects(two.acquire("vanished"), ConnectionLostError);
    await queued(one, "vanished", 1);
    assert.equal(sockets.length, 2); // one for its calls, and then that of the session
    const [ofCalls, ofSession] = sockets;
    ofCalls?.destroy(Object.assign(new Error("read ETIMEDOUT"), { code: "ETIMEDOUT" }));
    await two.check("vanished, mine", mine.token); // a device on the way may forget one connection
    ofSession?.destroy(Object.assign(new Error("read ETIMEDOUT"), { code: "ETIMEDOUT" }));
    await aborted(mine.signal);
    await waiting;
  });
});

test("a connection that says nothing is probed after 3 s", { skip: process.platform !== "linux" }, async () => {
  const own = await Sidecar.start(plain(folder));
  try {
    const port = await portOf(own);
    const client = own.client({ socketPath: undefined, url: `http://127.0.0.1:${port}`, tokenFile: token });
    await client.connect();
    const hex = port.toString(16).toUpperCase().padStart(4, "0");
    const timers = () =>
      readFileSync("/proc/self/net/tcp", "utf8")
        .split("\n")
        .map((row) => row.trim().split(/\s+/))
        .filter((row) => row[2]?.endsWith(`:${hex}`) && row[3] === "01")
        .map((row) => row[5] as string);
    assert.ok(timers().length >= 2); // the session's, and one for calls
    // Its kind is 02 if it probes; then its time in hundredths of a second.
    await until("all are probed", () =>
      timers().every((timer) => timer.startsWith("02:") && Number.parseInt(timer.slice(3), 16) <= 300),
    );
  } finally {
    await own.close();
  }
});

test("a token is read again when its file changes", limited, async () => {
  const own = await Sidecar.start(plain(folder));
  const file = write(folder, "rotated", otherToken);
  try {
    const client = own.client({
      socketPath: undefined,
      url: `http://127.0.0.1:${await portOf(own)}`,
      tokenFile: file,
    });
    await assert.rejects(client.get("k"), { name: "ForbiddenError", code: "unauthorized" });
    writeFileSync(file, tcpToken);
    // Neither the client nor the sidecar tells that it has read its file.
    const isRight = () =>
      client.get("k").then(
        () => true,
        (error) => (error instanceof ForbiddenError ? false : Promise.reject(error)),
      );
    await until("the right token", isRight);
    rmSync(file); // for a moment, while it is replaced
    const end = performance.now() + 1100;
    await until("the file was looked for", () => performance.now() > end);
    assert.equal((await client.get("k")).state, "free");
  } finally {
    await own.close();
  }
});

describe("mistakes", () => {
  const sidecars: Sidecar[] = [];
  const ports: Record<string, number> = {};
  before(async () => {
    for (const [name, settings] of Object.entries({
      good: ca.settings(),
      expired: ca.settings("DNS:localhost", -1),
      elsewhere: ca.settings("DNS:sidecar.example"),
      address: ca.settings("IP:127.0.0.1"),
      unencrypted: plain(folder),
    })) {
      const sidecar = await Sidecar.start(settings);
      sidecars.push(sidecar);
      ports[name] = await portOf(sidecar);
    }
    const listener = createServer();
    ports["nobody"] = await listening(listener);
    listener.close();
  });
  after(() => Promise.all(sidecars.map((sidecar) => sidecar.close())));

  const at = (name: string, host = "https://localhost") => `${host}:${ports[name]}`;
  const other = new Authority(join(folder, "other"));
  const cases: { [name: string]: [() => ClientOptions, new (...args: never[]) => Error, string[]] } = {
    "a wrong token": [
      () => ({ tokenFile: write(folder, "wrong", otherToken) }),
      ForbiddenError,
      ["LOCKSIDECAR_TCP_TOKEN_FILE"],
    ],
    "no token": [() => ({ tokenFile: undefined }), ForbiddenError, ["LOCKSIDECAR_TCP_TOKEN_FILE"]],
    "no token file": [() => ({ tokenFile: "/no/token" }), InvalidRequestError, ["tokenFile", "/no/token"]],
    "an empty token file": [
      () => ({ tokenFile: write(folder, "empty", "\n") }),
      InvalidRequestError,
      ["tokenFile", "first line"],
    ],
    "a token with a break": [
      () => ({ tokenFile: write(folder, "odd", "s3cret\rX: y") }),
      InvalidRequestError,
      ["tokenFile"],
    ],
    "a long token": [() => ({ tokenFile: write(folder, "long", "s3cret".repeat(200)) }), InvalidRequestError, ["512"]],
    "a wrong CA": [() => ({ caFile: other.file }), UnreachableError, ["caFile", other.file, "its CA"]],
    "Node's CAs": [() => ({ caFile: undefined }), UnreachableError, ["LOCKSIDECAR_CA_FILE", "does not trust"]],
    "no CA file": [() => ({ caFile: "/no/ca" }), InvalidRequestError, ["caFile", "/no/ca"]],
    "an empty CA file": [() => ({ caFile: write(folder, "empty", "\n") }), InvalidRequestError, ["caFile", "PEM"]],
    "an expired certificate": [() => ({ url: at("expired") }), UnreachableError, ["not valid now", "expired"]],
    "another name": [() => ({ url: at("elsewhere") }), UnreachableError, ["another name", "sidecar.example", "url"]],
    "an address for a name": [
      () => ({ url: at("good", "https://127.0.0.1") }),
      UnreachableError,
      ["another name", "127.0.0.1"],
    ],
    "HTTP to TLS": [() => ({ url: at("good", "http://localhost") }), InvalidRequestError, ["https://"]],
    "TLS to HTTP": [() => ({ url: at("unencrypted") }), UnreachableError, ["TLS", "url"]],
    "nobody listens": [() => ({ url: at("nobody") }), UnreachableError, ["LOCKSIDECAR_TCP_ADDR", "url"]],
    "no such host": [() => ({ url: "https://no-such-host.invalid:1" }), UnreachableError, ["is not known", "url"]],
    "two places": [() => ({ socketPath: "/s" }), InvalidRequestError, ["socketPath", "url"]],
    "a password": [() => ({ url: "https://u:s3cret@localhost:1" }), InvalidRequestError, ["url", "https://HOST:PORT"]],
    "no port": [() => ({ url: "https://localhost" }), InvalidRequestError, ["url", "https://HOST:PORT"]],
    "a port that is none": [() => ({ url: "https://localhost:70000" }), InvalidRequestError, ["url", "70000"]],
    "a path": [() => ({ url: "https://localhost:1/v1" }), InvalidRequestError, ["url"]],
    "a query": [() => ({ url: "https://localhost:1?a=b" }), InvalidRequestError, ["url"]],
    "a host and a path": [() => ({ url: "unix://host/s" }), InvalidRequestError, ["url", "unix:///PATH"]],
    "no scheme": [() => ({ url: "localhost:1" }), InvalidRequestError, ["url"]],
    "a line break": [() => ({ url: "http://localhost:1\r\nX: y" }), InvalidRequestError, ["url"]],
    "half an address": [() => ({ url: "http://[::1:1" }), InvalidRequestError, ["url"]],
  };
  for (const [name, [change, kind, says]] of Object.entries(cases)) {
    test(name, limited, async () => {
      const settings = { url: at("good"), tokenFile: token, caFile: ca.file, ...change() };
      for (const call of [(client: Client) => client.connect(), (client: Client) => client.get("k")]) {
        const run = async () => {
          await using client = new Client(settings);
          await call(client);
        };
        await assert.rejects(run, (error: Error) => {
          assert.ok(error instanceof kind, inspect(error));
          for (const said of says) {
            assert.ok(error.message.includes(said), `no ${said} in ${error.message}`);
          }
          const shown = inspect(error, { depth: 9 });
          assert.ok(![tcpToken, otherToken, "s3cret"].some((secret) => shown.includes(secret)), shown);
          return true;
        });
      }
    });
  }

  test("a certificate for the address is one", limited, async () => {
    await using client = new Client({ url: at("address", "https://127.0.0.1"), tokenFile: token, caFile: ca.file });
    assert.equal((await client.get("k")).state, "free");
  });

  // Proves: threat tcp
  test("the environment cannot turn the check of certificates off", limited, async () => {
    process.env["NODE_TLS_REJECT_UNAUTHORIZED"] = "0";
    try {
      for (const change of [{ caFile: other.file }, { url: at("expired") }, { url: at("elsewhere") }]) {
        await using client = new Client({ url: at("good"), tokenFile: token, caFile: ca.file, ...change });
        await assert.rejects(client.get("k"), UnreachableError);
      }
    } finally {
      delete process.env["NODE_TLS_REJECT_UNAUTHORIZED"];
    }
  });

  // Proves: threat tcp
  test("nothing is sent before the certificate is verified", limited, async () => {
    const { cert, key } = other.sign();
    const received: string[] = [];
    const server = createTlsServer({ cert: readFileSync(cert), key: readFileSync(key) }, (socket) => {
      socket.on("error", () => {});
      socket.on("data", (data) => received.push(data.toString()));
    });
    const closed = new Promise<void>((resolve) => {
      server.on("connection", (socket: Socket) => socket.on("close", () => resolve()));
      server.on("tlsClientError", () => {});
    });
    const port = await listening(server);
    await using client = new Client({ url: `https://localhost:${port}`, tokenFile: token, caFile: ca.file });
    await assert.rejects(client.get("k"), UnreachableError);
    await closed;
    server.close();
    assert.deepEqual(received, []);
  });

  test("a server that accepts, and says nothing", limited, async () => {
    const server = createServer(() => {});
    const port = await listening(server);
    const usual = Endpoint.dialMs;
    Endpoint.dialMs = 300;
    try {
      const settings = { tokenFile: token, caFile: ca.file, reconnectMs: 0 };
      await using encrypted = new Client({ ...settings, url: `https://localhost:${port}` });
      await assert.rejects(encrypted.acquire("k"), (error: Error) => {
        assert.ok(error instanceof UnreachableError, inspect(error));
        assert.match(error.message, /not made within 300 ms; check url, and the network/);
        return true;
      });
      await using client = new Client({ ...settings, url: `http://localhost:${port}`, timeoutMs: 200 });
      await assert.rejects(client.acquire("k"), TimeoutError);
    } finally {
      Endpoint.dialMs = usual;
      server.close();
    }
  });

  test("another server listens there", limited, async () => {
    const server = createServer((socket) => socket.end("220 mail.example ESMTP\r\n"));
    const port = await listening(server);
    await using client = new Client({ url: `http://127.0.0.1:${port}`, tokenFile: token });
    await assert.rejects(client.get("k"), { code: "bad_answer" });
    server.close();
  });
});

test("which address wins", () => {
  const { LOCKSIDECAR_URL: url, LOCKSIDECAR_SOCKET: socket } = process.env;
  try {
    for (const [options, inEnvironment, path, want] of [
      [{}, "", "/env", "/env"],
      [{}, "http://127.0.0.1:1", "/env", "http://127.0.0.1:1"],
      [{}, "unix:///url", "/env", "/url"],
      [{}, "unix:///a%20b", "/env", "/a b"],
      [{ socketPath: "/code" }, "http://127.0.0.1:1", "/env", "/code"],
      [{ url: "https://[::1]:2/" }, "http://127.0.0.1:1", "/env", "https://[::1]:2"],
    ] as const) {
      process.env["LOCKSIDECAR_URL"] = inEnvironment;
      process.env["LOCKSIDECAR_SOCKET"] = path;
      assert.equal(new Client(options).address, want, inspect({ options, inEnvironment }));
    }
    process.env["LOCKSIDECAR_URL"] = "ftp://h:1";
    assert.throws(() => new Client(), /^InvalidRequestError: LOCKSIDECAR_URL is "ftp:\/\/h:1"; allowed: unix/);
  } finally {
    for (const [name, value] of Object.entries({ LOCKSIDECAR_URL: url, LOCKSIDECAR_SOCKET: socket })) {
      if (value === undefined) {
        delete process.env[name];
      } else {
        process.env[name] = value;
      }
    }
  }
});
