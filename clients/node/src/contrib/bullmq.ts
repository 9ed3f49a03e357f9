// A processor for BullMQ workers: jobs with the same key run one at a time in the fleet.
import { callback, checkOptions, ms, text } from "../checks";
import type { Client } from "../client";
import { LockHeldError, WaitTimeoutError } from "../errors";
import type { Lock } from "../lock";
import { type AcquireOptions, acquireChecks } from "../options";
import { runHeld } from "./fleet";

/** A job of BullMQ, as far as it is used here. */
interface DelayableJob {
  moveToDelayed(timestamp: number, token?: string): Promise<void>;
}

/** The options of `locked`: those of an acquire. Without `waitMs` a job does not wait. */
export interface LockedOptions extends Omit<AcquireOptions, "signal" | "reentrant"> {
  /** What a job is whose lock is held: `delay` (the default) tries again later, `fail` fails with the error. */
  onHeld?: "delay" | "fail" | undefined;
  /** When to try again, in ms: 1000 by default. */
  delayMs?: number | undefined;
}

/**
 * locked makes a processor that holds a lock while it runs:
 *
 *     new Worker("orders", locked(client, (job) => `order:${job.data.id}`, (job, lock, signal) => pay(job.data, lock.token)));
 *
 * `signal` is aborted by a lost lock, and by BullMQ. If the lock is lost, the job fails at once with a `LockLostError`, and BullMQ
 * tries it again as its `attempts` say. A job fails without the sidecar, with an `UnreachableError` for example. It does not run then.
 */
export function locked<J extends DelayableJob, R>(
  client: Client,
  key: (job: J) => string,
  run: (job: J, lock: Lock, signal: AbortSignal) => R | PromiseLike<R>,
  options: LockedOptions = {},
): (job: J, token?: string, signal?: AbortSignal) => Promise<R> {
  callback("key", key);
  callback("the function to run", run);
  checkOptions(options, { ...acquireChecks, onHeld: text, delayMs: ms });
  const { onHeld = "delay", delayMs = 1000, waitMs = 0, ...wanted } = options;
  // BullMQ passes a signal only to a function of three parameters.
  return async (job: J, token: string | undefined, signal: AbortSignal | undefined): Promise<R> => {
    let lock: Lock;
    try {
      lock = await client.acquire(key(job), { ...wanted, waitMs, signal });
    } catch (error) {
      if (onHeld === "fail" || !(error instanceof LockHeldError || error instanceof WaitTimeoutError)) {
        throw error;
      }
      await job.moveToDelayed(Date.now() + delayMs, token);
      throw delayed(error.message);
    }
    return runHeld(lock, () => run(job, lock, signal ? AbortSignal.any([lock.signal, signal]) : lock.signal));
  };
}

/** delayed tells the worker that the job was moved. BullMQ knows the error by its name, so this needs no import. */
function delayed(message: string): Error {
  return Object.assign(new Error(message), { name: "DelayedError" });
}
