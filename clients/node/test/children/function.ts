// A process whose function under a lock only waits for the end of the lock.
import { once } from "node:events";
import { Client } from "locksidecar";

const client = new Client({ socketPath: process.argv[2] || undefined });
void client.lock("function", async (lock) => {
  // A timer that keeps nothing alive: it comes only if something else does.
  setTimeout(() => process.exit(7), 100).unref();
  await once(lock.signal, "abort");
});
