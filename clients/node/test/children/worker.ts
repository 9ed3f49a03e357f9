// Counts under a lock, in a worker thread or a worker of a cluster: reads a number from a file, yields, and writes it plus
// one. Without mutual exclusion some counts are lost.
import { readFileSync, writeFileSync } from "node:fs";
import { Client } from "locksidecar";

export async function count(socketPath: string | undefined, file: string, times: number): Promise<void> {
  await using client = new Client({ socketPath });
  for (let i = 0; i < times; i++) {
    await client.lock("count", async () => {
      const seen = Number(readFileSync(file, "utf8"));
      await new Promise(setImmediate);
      writeFileSync(file, String(seen + 1));
    });
  }
}
