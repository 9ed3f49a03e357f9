import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Worker } from "node:worker_threads";
import { child, line, starved } from "./processes";
import { patienceMs, Sidecar } from "./sidecar";

let sidecar: Sidecar;
before(async () => {
  sidecar = await Sidecar.start({ TTL: "1h" }); // so no lock expires during a test
});
after(() => sidecar.close());

const limited = { timeout: 2 * patienceMs };

test("kill -9 of a process that holds a lock frees it at once", limited, async () => {
  const holder = child("holder", sidecar.socketPath, "killed");
  const token = Number(await line(holder));
  const client = sidecar.client();
  assert.equal((await client.get("killed")).holder?.session, "holder");
  const waiting = client.acquire("killed", { waitMs: patienceMs });
  holder.kill("SIGKILL");
  assert.ok((await waiting).token > token); // the lease would last an hour
});

test("an idle client with a lock and a watch does not keep the process alive", limited, async () => {
  const idle = child("idle", sidecar.socketPath);
  const exit = once(idle, "exit");
  assert.equal(await line(idle), "idle");
  assert.deepEqual(await exit, [0, null]);
  await sidecar.client().acquire("idle", { waitMs: patienceMs }); // and its lock is free
});

test("a function under a lock keeps the process alive while it waits", limited, async () => {
  const waiting = child("function", sidecar.socketPath);
  assert.deepEqual(await once(waiting, "exit"), [7, null]);
});

// Proves: client descriptors
test("waiting calls that take all descriptors do not keep the release of the holder", limited, async () => {
  const few = starved("starved", 60, sidecar.socketPath);
  const exit = once(few, "exit");
  const { granted, name, message } = JSON.parse(await line(few));
  assert.equal(granted, 100);
  assert.equal(name, "UnreachableError");
  assert.match(message, /no file descriptor left .*\(EMFILE\): this process may have 60 \(ulimit -n\)/);
  assert.deepEqual(await exit, [0, null]);
  assert.equal((await sidecar.client().get("starved")).state, "free");
});

// Proves: client own clock
test("a loss is told in time although calls that hang have taken all descriptors", limited, async () => {
  const own = await Sidecar.start();
  const few = starved("hanging", 60, own.socketPath);
  assert.equal(await line(few), "acquired");
  await own.hang();
  few.stdin?.end();
  const { reason, tookMs } = JSON.parse(await line(few));
  await own.close();
  assert.equal(reason, "expired");
  assert.ok(tookMs > 1500 && tookMs < 20_000, `after ${tookMs} ms`);
});

// Proves: client own clock
test("a lock stays although the app has taken all descriptors", limited, async () => {
  const crowded = starved("crowded", 60, sidecar.socketPath);
  assert.deepEqual(JSON.parse(await line(crowded)), { lost: false, held: true, released: true });
});

test("worker threads exclude each other", limited, async () => {
  const file = join(sidecar.folder, "threads");
  writeFileSync(file, "0");
  const start = () =>
    new Worker(join(__dirname, "children", "thread.js"), {
      workerData: { socketPath: sidecar.socketPath, file, times: 50 },
    });
  const codes = await Promise.all([start(), start()].map(async (worker) => (await once(worker, "exit"))[0]));
  assert.deepEqual(codes, [0, 0]);
  assert.equal(readFileSync(file, "utf8"), "100");
});

test("a worker thread that is terminated frees its locks, and only its own", limited, async () => {
  const client = sidecar.client();
  const mine = await client.acquire("main thread");
  const worker = new Worker(join(__dirname, "children", "thread.js"), {
    workerData: { socketPath: sidecar.socketPath, hold: "thread" },
  });
  const [token] = (await once(worker, "message")) as [number];
  const waiting = client.acquire("thread", { waitMs: patienceMs });
  await worker.terminate();
  assert.ok((await waiting).token > token);
  await mine.check();
});

test("the workers of a cluster exclude each other, and the primary keeps its lock", limited, async () => {
  const file = join(sidecar.folder, "cluster");
  writeFileSync(file, "0");
  const primary = child("cluster", sidecar.socketPath, file, "50");
  const exit = once(primary, "exit");
  assert.deepEqual(JSON.parse(await line(primary)), [0, 0]);
  assert.deepEqual(await exit, [0, null]);
  assert.equal(readFileSync(file, "utf8"), "100");
});
