// A coordinator for node-cron: each tick of a distributed task runs in one process of the fleet.
import { checkOptions, text } from "../checks";
import type { Client } from "../client";
import type { Lock } from "../lock";
import { runHeld, type TickOptions, TickSkippedError, takeTick, tickChecks } from "./fleet";

/** The context that node-cron gives to a task, as far as it is used here. */
interface Context {
  task?: { name?: string } | undefined;
}

/** The keys of node-cron: the name of the task, and the planned time. */
const slot = /^(.+):(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)$/s;

/**
 * FleetCoordinator is a `runCoordinator` of node-cron 4:
 *
 *     const fleet = new FleetCoordinator(new Client());
 *     cron.schedule("0 3 * * *", fleet.locked(closeBooks), { name: "close-books", distributed: true, runCoordinator: fleet });
 *
 * If the sidecar is away, node-cron skips the tick, and reports `coordinator-error`.
 */
export class FleetCoordinator {
  readonly #client: Client;
  readonly #options: TickOptions & { prefix?: string | undefined };
  readonly #locks = new Map<string, Lock>();

  /** The key of a task's lock is its name behind the prefix, by default `job:`. */
  constructor(client: Client, options: TickOptions & { prefix?: string | undefined } = {}) {
    checkOptions(options, { ...tickChecks, prefix: text }, "{ minHoldMs: 600_000 }");
    this.#client = client;
    this.#options = options;
  }

  /** For node-cron. Throws as `client.acquire` if nobody knows who has the lock. */
  async shouldRun(key: string, ttlMs: number): Promise<boolean> {
    const [, name, at] = slot.exec(key) ?? [];
    if (name === undefined || at === undefined) {
      throw new TypeError(`${JSON.stringify(key)} is no key of node-cron: a name, a colon and a time`);
    }
    const { prefix = "job:", minHoldMs = 600_000, waitMs } = this.#options;
    try {
      const options = { minHoldMs: Math.max(minHoldMs, ttlMs), waitMs };
      this.#locks.set(name, await takeTick(this.#client, prefix + name, new Date(at), options));
      return true;
    } catch (error) {
      if (error instanceof TickSkippedError) {
        return false;
      }
      throw error;
    }
  }

  /** For node-cron. Throws a `LockLostError` if the task was not made by `locked`, and its lock was lost. */
  async onComplete(key: string): Promise<void> {
    const name = slot.exec(key)?.[1] ?? "";
    const lock = this.#locks.get(name);
    this.#locks.delete(name);
    await lock?.release();
  }

  /**
   * locked makes a task that gets its lock: the fencing token, and the signal that a loss aborts. The execution fails at once
   * if the lock is lost. It fails without a lock, as after `task.execute()`, which asks no coordinator.
   */
  locked<C extends Context, T>(run: (context: C, lock: Lock) => T | PromiseLike<T>): (context: C) => Promise<T> {
    return async (context) => {
      const name = context.task?.name ?? "";
      const lock = this.#locks.get(name);
      if (lock === undefined) {
        throw new Error(
          `task ${JSON.stringify(name)} has no lock: it needs distributed: true and this runCoordinator; ` +
            "a run by execute() has no planned time, so it has none either",
        );
      }
      this.#locks.delete(name); // released here
      return await runHeld(lock, () => run(context, lock));
    };
  }
}
