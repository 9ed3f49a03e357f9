// Leads until it is killed. argv: the socket's path, the key, its name.
import { once } from "node:events";
import { Client } from "locksidecar";

const [socketPath, key, name] = process.argv.slice(2) as [string, string, string];

async function main(): Promise<void> {
  const client = new Client({ socketPath, name });
  await client.lead(key, { data: { name } }, async (term) => {
    process.stdout.write(`${term.token}\n`);
    setInterval(() => {}, 1000); // the client does not keep the process alive
    await once(term.signal, "abort");
  });
}

void main();
