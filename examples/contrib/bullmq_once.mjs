// BullMQ workers in two processes: two jobs for one order run one after the other, the second after a delay. The example starts a
// Redis of its own. Install with `npm install locksidecar bullmq ioredis`.
import { fork, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { Queue, QueueEvents, Worker } from "bullmq";
import { Client } from "locksidecar";
import { locked } from "locksidecar/contrib/bullmq";

/** Runs jobs. Each says that it has begun, and ends when the parent says so. */
async function worker(path) {
  const client = new Client({ name: "bullmq_once" });
  const pay = async (job, lock) => {
    process.send({ pid: process.pid, job: job.id, token: lock.token }); // each write of the job has its token
    await once(process, "message");
  };
  const processor = locked(client, (job) => `order:${job.data.order}`, pay, { delayMs: 50 });
  const running = new Worker("orders", processor, { connection: { path, maxRetriesPerRequest: null } });
  await running.waitUntilReady();
}

async function main() {
  const folder = mkdtempSync(join(tmpdir(), "lsq"));
  const path = join(folder, "redis");
  const options = ["--port", "0", "--unixsocket", path, "--save", "", "--loglevel", "warning"];
  const children = [spawn("redis-server", options, { stdio: "ignore" })];
  try {
    while (!existsSync(path)) await sleep(10);
    const connection = { path, maxRetriesPerRequest: null };
    const queue = new Queue("orders", { connection });
    const events = new QueueEvents("orders", { connection });
    await events.waitUntilReady();
    // With two sidecars on one database, the workers are in different pods.
    const { LOCKSIDECAR_SOCKET: socket, LOCKSIDECAR_SOCKET_2: second = socket } = process.env;
    const begun = new Map();
    const begins = [1, 2].map((id) => new Promise((resolve) => begun.set(String(id), resolve)));
    for (const LOCKSIDECAR_SOCKET of [socket, second]) {
      const child = fork(fileURLToPath(import.meta.url), [path], { env: { ...process.env, LOCKSIDECAR_SOCKET } });
      child.on("message", ({ job, token }) => begun.get(job)({ child, job, token }));
      children.push(child);
    }
    const delayed = once(events, "delayed");
    await queue.addBulk([1, 2].map(() => ({ name: "pay", data: { order: 7 } })));
    const first = await Promise.race(begins);
    console.log(`job ${first.job} runs, fencing token ${first.token}`);
    console.log(`job ${(await delayed)[0].jobId} is delayed: the order is locked`);
    first.child.send("end");
    const next = await begins[first.job === "1" ? 1 : 0];
    console.log(`job ${next.job} runs, fencing token ${next.token}`);
    const completed = once(events, "completed");
    next.child.send("end");
    await completed;
    process.exitCode = next.token > first.token ? 0 : 1;
    await Promise.all([events.close(), queue.close()]);
  } finally {
    for (const child of children) child.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  }
}

await (process.argv[2] ? worker(process.argv[2]) : main());
