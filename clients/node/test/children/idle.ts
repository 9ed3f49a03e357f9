// Opens a session, holds a lock, watches a key, and has nothing more to do. argv: the socket's path.
import { Client } from "locksidecar";

async function main(): Promise<void> {
  const client = new Client({ socketPath: process.argv[2] || undefined });
  const events = client.events("idle");
  await events.next(); // its state
  const next = events.next();
  await client.acquire("idle");
  await next;
  process.stdout.write("idle\n");
}

void main();
