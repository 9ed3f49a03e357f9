// A process that has few file descriptors, of which waiting calls take all.
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "locksidecar";

async function main(): Promise<void> {
  const client = new Client({ socketPath: process.argv[2] || undefined });
  const lock = await client.acquire("starved");
  const others = await Promise.all(["a", "b", "c"].map((key) => client.acquire(key)));
  let granted = 0;
  const waiting = Array.from({ length: 100 }, async () => {
    const got = await client.acquire("starved");
    granted++;
    await got.release();
  });
  let refused: Error | undefined;
  while (refused === undefined) {
    // It fails as soon as the calls above have taken all.
    const other = await client.acquire("other", { waitMs: 0 }).catch((error) => {
      refused = error;
    });
    await other?.release();
    await sleep(5);
  }
  await lock.check();
  await lock.update("still here");
  await client.stop("starved");
  await Promise.all([lock, ...others].map((held) => held.release())); // in one turn
  await Promise.all(waiting);
  await client.close();
  process.stdout.write(JSON.stringify({ granted, name: refused.name, message: refused.message }));
}

void main();
