// A process that has few file descriptors, of which calls that hang take all. It has a lock when its input ends, and says how long it had it.
import { once } from "node:events";
import { performance } from "node:perf_hooks";
import { setImmediate as turn } from "node:timers/promises";
import { Client, type LockLostError } from "locksidecar";

async function main(): Promise<void> {
  const client = new Client({ socketPath: process.argv[2] || undefined, timeoutMs: 60_000 });
  const acquired = performance.now();
  const lock = await client.acquire("hanging", { ttlMs: 2000 });
  const lost = once(lock.signal, "abort");
  process.stdout.write("acquired\n");
  await once(process.stdin.resume(), "end");
  for (let n = 0; n < 100; n++) {
    client.get("hanging").catch(() => {});
    await turn(); // those of one turn may share a connection
  }
  await lost;
  const tookMs = performance.now() - acquired;
  process.stdout.write(JSON.stringify({ reason: (lock.signal.reason as LockLostError).reason, tookMs }));
  process.exit();
}

void main();
