// A leader among processes, with the Node client: when it dies, the next one leads at once. Everybody else reads the
// leader's address from its lock. Install the client with `npm install locksidecar`.
import { fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { Client } from "locksidecar";

const KEY = "leader:mailer";
const CANDIDATES = 3;

/** Runs until it is ended. It leads again after a loss. */
async function candidate() {
  const client = new Client({ name: "leader.mjs" });
  await client.lead(KEY, { data: { pid: process.pid }, ttlMs: 15_000 }, async (term) => {
    // Each write of a leader has its token, so a late write of its predecessor is refused.
    process.send(term.token);
    await once(term.signal, "abort"); // the work: it ends when the term does
  });
}

async function main() {
  const candidates = Array.from({ length: CANDIDATES }, () => fork(fileURLToPath(import.meta.url), ["candidate"]));
  const tokens = new Map(candidates.map((child) => [child.pid, once(child, "message").then(([token]) => token)]));
  const client = new Client();
  try {
    let last = 0;
    let leads = 0;
    for await (const leader of client.watchLeader(KEY)) {
      if (leader === null) {
        if (leads === CANDIDATES) break; // all are dead
        continue;
      }
      const token = await tokens.get(leader.pid);
      if (!(token > last)) throw new Error(`the token of the leader is ${token}, after ${last}`);
      last = token;
      leads++;
      console.log(`process ${leads} leads, fencing token ${token}; kill -9`);
      candidates.find((child) => child.pid === leader.pid).kill("SIGKILL");
    }
  } finally {
    for (const child of candidates) child.kill("SIGKILL");
    await client.close();
  }
}

await (process.argv[2] ? candidate() : main());
