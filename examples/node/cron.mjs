// A scheduler in each of two processes, with node-cron: each tick of the task runs in one of them. Install the client with
// `npm install locksidecar node-cron`.
import { fork } from "node:child_process";
import { on } from "node:events";
import { fileURLToPath } from "node:url";
import { Client } from "locksidecar";
import { FleetCoordinator } from "locksidecar/contrib/node-cron";
import cron from "node-cron";

/** Schedules the task, and says what has become of each tick. */
function pod() {
  const fleet = new FleetCoordinator(new Client({ name: "cron.mjs" }));
  const closeBooks = fleet.locked(async (_, lock) => lock.token); // each write of the task has its token
  const options = { name: "close-books", distributed: true, runCoordinator: fleet };
  const task = cron.schedule("* * * * * *", closeBooks, options);
  task.on("execution:finished", ({ date, execution }) => process.send({ date, ran: execution.result }));
  task.on("execution:skipped", ({ date, reason }) => process.send({ date, skipped: reason }));
}

async function main() {
  // With two sidecars on one database, the processes are in different pods.
  const { LOCKSIDECAR_SOCKET: socket, LOCKSIDECAR_SOCKET_2: second = socket } = process.env;
  const news = new AbortController();
  const pods = [socket, second].map((LOCKSIDECAR_SOCKET) =>
    fork(fileURLToPath(import.meta.url), ["pod"], { env: { ...process.env, LOCKSIDECAR_SOCKET } }),
  );
  try {
    const ticks = new Map();
    const ends = await Promise.any(
      pods.map(async (child, i) => {
        for await (const [{ date, ran, skipped }] of on(child, "message", { signal: news.signal })) {
          console.log(`process ${i + 1}, tick ${date}: ${ran ? `ran, fencing token ${ran}` : skipped}`);
          const ends = [...(ticks.get(date) ?? []), ran ? "ran" : skipped];
          ticks.set(date, ends);
          // A run that takes longer than a second lets both processes skip the next tick.
          if (ends.length === 2 && ends.includes("ran")) return ends;
        }
      }),
    );
    process.exitCode = ends.sort().join() === "not-elected,ran" ? 0 : 1;
  } finally {
    news.abort();
    for (const child of pods) child.kill("SIGKILL");
  }
}

await (process.argv[2] ? pod() : main());
