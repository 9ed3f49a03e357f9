// Holds a lock until it is killed. argv: the socket's path, the key.
import { Client } from "locksidecar";

const [socketPath, key] = process.argv.slice(2) as [string, string];

async function main(): Promise<void> {
  const client = new Client({ socketPath: socketPath || undefined, name: "holder" });
  const lock = await client.acquire(key);
  process.stdout.write(`${lock.token}\n`);
  setInterval(() => {}, 1000); // the client does not keep the process alive
}

void main();
