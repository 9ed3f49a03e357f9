// A cluster whose workers count under a lock. argv: the socket's path (empty: as the environment says), the file, how often. The primary has a client of
// its own, with a lock, when it forks.
import cluster from "node:cluster";
import { once } from "node:events";
import { Client } from "locksidecar";
import { count } from "./worker";

const [path, file, times] = process.argv.slice(2) as [string, string, string];
const socketPath = path || undefined;

async function primary(): Promise<void> {
  const client = new Client({ socketPath });
  const lock = await client.acquire("primary");
  const workers = [cluster.fork(), cluster.fork()];
  const codes = await Promise.all(workers.map(async (worker) => (await once(worker, "exit"))[0] as number));
  await lock.check();
  process.stdout.write(`${JSON.stringify(codes)}\n`);
}

async function worker(): Promise<void> {
  await count(socketPath, file, Number(times));
  process.disconnect?.();
}

void (cluster.isPrimary ? primary() : worker());
