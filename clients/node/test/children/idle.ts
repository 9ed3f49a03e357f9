// Opens a session, holds a lock, watches a key, and has nothing more to do. argv: the socket's path.
import { Client } from "locksidecar";

async function main(): Promise<void> {
  const client = new Client({ socketPath: process.argv[2] });
  await client.acquire("idle");
  await client.events("idle").next();
  process.stdout.write("idle\n");
}

void main();
