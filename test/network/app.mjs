// The app of network_test.go with the client for Node. It writes a line for each event, with its time.
import { createRequire } from "node:module";

const { Client } = createRequire(import.meta.url)("../../clients/node");
const say = (what, error) => console.log(`${what} ${Date.now()}000000 ${error}`);
// Its leases are longer than the time after which the sidecar gives up a silent app.
const client = new Client({ reconnectMs: 0, ttlMs: 60_000 });
setInterval(() => {}, 1000); // the client does not keep the process alive
try {
  if (process.env.NETWORK_TEST_APP === "waits") {
    await client.connect();
    say("waits", null);
    await client.acquire("other").catch((error) => say("ended", error));
  } else {
    const lock = await client.acquire("k", { waitMs: 10_000 });
    lock.signal.addEventListener("abort", () => say("lost", lock.signal.reason));
    say("held", null);
  }
} catch (error) {
  say("failed", error);
}
