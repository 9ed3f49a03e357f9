// Shared by the integrations: a tick of a schedule that runs once, and work that a lost lock ends.
import { type Checks, checkOptions, ms, wait } from "../checks";
import type { Client } from "../client";
import { InvalidRequestError, LocksidecarError } from "../errors";
import { type Lock, under } from "../lock";
import type { NotGranted } from "../options";

/** Ticks of a job, in ms. */
export interface TickOptions {
  /**
   * For so long nobody runs the same tick again: 600,000 by default. A process that is late by more than half of it skips the
   * tick. So no tick runs twice while the clocks of the hosts differ by less than half of it.
   */
  minHoldMs?: number | undefined;
  /** How long a tick waits for the end of the run before: 0 by default. */
  waitMs?: number | undefined;
}

/** `tick_skipped`: another process has the tick, or the tick is too late. The message says which. It is no failure. */
export class TickSkippedError extends LocksidecarError {
  override name = "TickSkippedError";
  constructor(message: string) {
    super("tick_skipped", message);
  }
}

export const tickChecks: Checks<TickOptions> = { minHoldMs: ms, waitMs: wait };

const tickHoldMs = 600_000;

/**
 * takeTick acquires the lock of a job, for the run of one tick. `at` is the time that the schedule planned, the same one in all
 * processes, however long they run. An interval that each process counts from its own start has no such time. Pass the start of the
 * period into which the present time falls, counted from 1970, and a `minHoldMs` of more than two intervals, because a process may
 * come as late as one interval.
 *
 * The tick has a key of its own, `tick:job@time`, which nobody gets again before `minHoldMs`. The run has the lock `job`: runs
 * do not overlap, and its token grows. Throws a `TickSkippedError`, or as `client.acquire` if nobody knows.
 */
export async function takeTick(client: Client, job: string, at: Date, options: TickOptions = {}): Promise<Lock> {
  checkOptions(options, tickChecks, "{ minHoldMs: 600_000 }");
  const { minHoldMs = tickHoldMs, waitMs = 0 } = options;
  if (!(at instanceof Date) || Number.isNaN(at.getTime())) {
    throw new InvalidRequestError(`at: ${String(at)} is not the time that the schedule planned for the tick`);
  }
  const key = `tick:${job}@${at.toISOString()}`;
  const lateMs = Date.now() - at.getTime();
  if (lateMs > minHoldMs / 2) {
    throw new TickSkippedError(`${key} is ${lateMs} ms late, more than half of minHoldMs: others may have run it`);
  }
  const tick = await client.tryAcquire(key, { minHoldMs });
  if (!tick.granted) {
    throw new TickSkippedError(`${key} was taken by ${podOf(tick)}`);
  }
  await tick.lock.release();
  const run = await client.tryAcquire(job, { waitMs, data: { tick: key } });
  if (!run.granted) {
    throw new TickSkippedError(`${key} is skipped in the whole fleet: an earlier run goes on in ${podOf(run)}`);
  }
  return run.lock;
}

function podOf({ holder }: NotGranted): string {
  return holder === null ? "another process" : `pod ${JSON.stringify(holder.pod)}`;
}

/**
 * runHeld runs a function and releases the lock. If the lock is lost, it throws the `LockLostError` at once, also if the function
 * does not look at `lock.signal` and goes on.
 */
export function runHeld<T>(lock: Lock, run: (lock: Lock) => T | PromiseLike<T>): Promise<T> {
  return under(lock, async () => {
    const { signal } = lock;
    signal.throwIfAborted();
    let lose = (): void => {};
    const lost = new Promise<never>((_, reject) => {
      lose = () => reject(signal.reason);
    });
    signal.addEventListener("abort", lose, { once: true });
    try {
      return await Promise.race([run(lock), lost]);
    } finally {
      signal.removeEventListener("abort", lose);
    }
  });
}
