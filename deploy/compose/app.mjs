// The app in Node of compose.yaml: it shares its work with the app in Python, which has a sidecar of its own.
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "locksidecar";

const client = new Client({ name: "compose" });

/** One of all apps makes a report at a time, in the order in which they asked. */
async function report() {
  await client.lock("report:daily", { data: { app: "node" } }, async (lock) => {
    console.log(`the report is mine, fencing token ${lock.token}`);
    await sleep(1000 + 3000 * Math.random());
  });
}

/** At most two uploads run at a time, in the whole fleet. Two more wait in this app. */
async function uploads() {
  const images = client.semaphore("upload:images", 2);
  await Promise.all(
    ["a", "b", "c"].map((image) =>
      images.run(async (permit) => {
        console.log(`upload ${image} in slot ${permit.slot}`);
        await sleep(500 + 1500 * Math.random());
      }),
    ),
  );
}

for (;;) await (Math.random() < 0.5 ? report() : uploads());
