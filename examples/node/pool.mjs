// Worker processes that share orders with the Node client: the worker with the lock of an order handles it,
// the others go on to the next order. Install the client with `npm install locksidecar`.
import { fork } from "node:child_process";
import { once } from "node:events";
import { appendFile, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Client } from "locksidecar";

const WORKERS = 3;
const ORDERS = Array.from({ length: 12 }, (_, i) => `order:${i + 1}`);

async function worker(folder) {
  const client = new Client({ name: "pool.mjs" });
  for (const order of ORDERS) {
    const attempt = await client.tryAcquire(order);
    if (!attempt.granted) continue; // another worker handles it
    const { lock } = attempt;
    try {
      const done = await readFile(join(folder, "done"), "utf8");
      if (done.includes(`${order}\n`)) continue; // another worker has handled it
      lock.signal.throwIfAborted(); // the lock could be lost by now
      await appendFile(join(folder, "done"), `${order}\n`);
    } finally {
      await lock.release();
    }
  }
  await client.close();
}

async function main() {
  const folder = await mkdtemp(join(tmpdir(), "pool"));
  try {
    await writeFile(join(folder, "done"), "");
    const workers = Array.from({ length: WORKERS }, () => fork(fileURLToPath(import.meta.url), [folder]));
    const codes = await Promise.all(workers.map(async (child) => (await once(child, "exit"))[0]));
    const done = (await readFile(join(folder, "done"), "utf8")).trim().split("\n");
    console.log(`${WORKERS} workers have handled ${done.length} orders, ${new Set(done).size} different ones`);
    const right = done.length === ORDERS.length && new Set(done).size === ORDERS.length;
    process.exitCode = right && codes.every((code) => code === 0) ? 0 : 1;
  } finally {
    await rm(folder, { recursive: true });
  }
}

await (process.argv[2] ? worker(process.argv[2]) : main());
