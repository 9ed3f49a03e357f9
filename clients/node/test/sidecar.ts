// Helpers of all tests: waiting for a condition, and a real sidecar from locksidecar/testing.
import { once } from "node:events";
import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Client } from "locksidecar";
import { Sidecar } from "locksidecar/testing";

process.env["LOCKSIDECAR_BINARY"] ??= resolve(__dirname, "../../../bin/locksidecar");

/** The limit for every wait of a test. */
export const patienceMs = 60_000;

export { Sidecar };

/** until waits for a condition. */
export async function until(what: string, is: () => Promise<boolean> | boolean): Promise<void> {
  const end = performance.now() + patienceMs;
  while (!(await is())) {
    if (performance.now() > end) {
      throw new Error(`waited ${patienceMs} ms in vain: ${what}`);
    }
    await sleep(5);
  }
}

/** queued waits for a number of waiters in the store. The sidecar itself also counts those that are about to wait. */
export function queued(client: Client, key: string, length: number): Promise<void> {
  return until(
    `${length} wait for ${key}`,
    async () => (await client.get(key, { fresh: true })).queueLength === length,
  );
}

/** aborted waits for a signal, and returns its reason. */
export async function aborted(signal: AbortSignal): Promise<unknown> {
  if (!signal.aborted) {
    const limit = AbortSignal.timeout(patienceMs);
    await Promise.race([
      once(signal, "abort"),
      once(limit, "abort").then(() => Promise.reject(new Error("waited in vain for a signal"))),
    ]);
  }
  return signal.reason;
}
