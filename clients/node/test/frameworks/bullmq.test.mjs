// The processor for BullMQ, with real workers and a Redis of its own.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Queue, QueueEvents, Worker } from "bullmq";
import { Client } from "locksidecar";
import { locked } from "locksidecar/contrib/bullmq";

const folder = mkdtempSync(join(tmpdir(), "lsq"));
const children = [];

/** start starts a server and waits for its socket. It ends with this process. */
async function start(command, args, socket, env = {}) {
  const child = spawn(command, args, {
    env: { PATH: process.env.PATH, ...env },
    stdio: ["ignore", "ignore", "inherit"],
  });
  children.push(child);
  while (!existsSync(socket)) {
    assert.equal(child.exitCode, null, `${command} has ended`);
    await sleep(10);
  }
  return child;
}

process.once("exit", () => {
  for (const child of children) {
    child.kill("SIGKILL");
  }
  rmSync(folder, { recursive: true, force: true });
});

describe("bullmq", () => {
  const redis = join(folder, "redis");
  const socketPath = join(folder, "s");
  const connection = { path: redis, maxRetriesPerRequest: null };
  const opened = [];
  let sidecar;
  let clients;

  before(async () => {
    await start("redis-server", ["--port", "0", "--unixsocket", redis, "--save", "", "--loglevel", "warning"], redis);
    const binary = process.env.LOCKSIDECAR_BINARY ?? resolve(import.meta.dirname, "../../../../bin/locksidecar");
    const settings = {
      LOCKSIDECAR_SOCKET: socketPath,
      LOCKSIDECAR_ALLOW_FORCE: "true",
      LOCKSIDECAR_LOG_LEVEL: "error",
    };
    sidecar = await start(binary, ["serve"], socketPath, { ...settings, LOCKSIDECAR_TTL: "1h" });
    clients = [new Client({ socketPath }), new Client({ socketPath })];
  });
  after(async () => {
    for (const one of opened) {
      await one.close(true); // also if a job does not end
    }
    for (const child of children) {
      child.kill("SIGKILL");
    }
  });

  /** A queue with a worker for each client, and what its jobs end with. */
  async function working(run, options, of = clients) {
    const name = randomUUID();
    const queue = new Queue(name, { connection });
    const events = new QueueEvents(name, { connection });
    await events.waitUntilReady();
    const workers = of.map(
      (client) =>
        new Worker(
          name,
          locked(client, (job) => job.data.key, run, options),
          { connection },
        ),
    );
    opened.push(...workers, events, queue);
    const add = async (key) => (await queue.add("job", { key })).waitUntilFinished(events, 10_000);
    return Object.assign(add, { events, workers });
  }

  test("jobs with the same key run one at a time, and all of them run", async () => {
    let running = 0;
    const tokens = [];
    const add = await working(
      async (_, lock) => {
        assert.equal(++running, 1);
        tokens.push(lock.token);
        await delayed; // the other worker has tried to run a job
        running--;
      },
      { delayMs: 10 },
    );
    const delayed = once(add.events, "delayed");
    const key = randomUUID();
    await Promise.all(Array.from({ length: 6 }, () => add(key)));
    assert.equal(tokens.length, 6);
    assert.deepEqual(
      tokens,
      tokens.toSorted((a, b) => a - b),
    );
  });

  test("a held lock fails the job, if it is asked to", { timeout: 20_000 }, async () => {
    // An option that is undefined is one that is not given, so the job does not wait.
    const add = await working(() => assert.fail("it runs"), { onHeld: "fail", waitMs: undefined, delayMs: undefined });
    const key = randomUUID();
    await clients[0].lock(key, () => assert.rejects(add(key), /is held/));
  });

  test("a lost lock fails the job, and aborts its signal", async () => {
    let signal;
    const add = await working(async (job, _, given) => {
      signal = given;
      await clients[1].forceRelease(job.data.key);
      await new Promise(() => {});
    });
    await assert.rejects(add(randomUUID()), /was lost: forced/);
    assert.equal(signal.aborted, true);
    assert.equal(signal.reason.code, "lock_lost");
  });

  test("BullMQ's cancellation of a job aborts its signal", async () => {
    const add = await working(
      (job, _, signal) => add.workers[0].cancelJob(job.id, "enough") && signal.reason,
      {},
      clients.slice(0, 1),
    );
    assert.equal(await add(randomUUID()), "enough");
  });

  test("without the sidecar the job does not run", async () => {
    const exit = once(sidecar, "exit");
    sidecar.kill("SIGKILL");
    await exit;
    const add = await working(() => assert.fail("it runs"), {}, [new Client({ socketPath })]);
    await assert.rejects(add(randomUUID()), /sidecar/);
  });
});
