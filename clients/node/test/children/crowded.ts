// A process that has few file descriptors, and uses all of them while it has a lock.
import { openSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "locksidecar";

async function main(): Promise<void> {
  const client = new Client({ socketPath: process.argv[2] || undefined });
  const lock = await client.acquire("crowded", { ttlMs: 4000 });
  try {
    for (;;) {
      openSync("/dev/null", "r");
    }
  } catch {
    // it has all
  }
  await sleep(6000);
  const lost = lock.signal.aborted;
  const held = (await lock.check()).expiresInMs > 0;
  await lock.release();
  process.stdout.write(JSON.stringify({ lost, held, released: true }));
  process.exit();
}

void main();
