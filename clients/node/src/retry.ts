import { setTimeout as sleep } from "node:timers/promises";
import { ConnectionLostError, DrainingError, SessionEndedError, UnreachableError } from "./errors";

const firstPauseMs = 20;
const longestPauseMs = 1000;

/** Patience is how long a call that goes on for long bears with a sidecar that is away, as when it is restarted. */
export class Patience {
  #until: number | undefined;
  #pauseMs = firstPauseMs;

  constructor(readonly limitMs: number) {}

  /** pause waits before the next try. Throws the cause when it has lasted too long, and the signal's reason. */
  async pause(cause: unknown, signal?: AbortSignal): Promise<void> {
    this.#until ??= performance.now() + this.limitMs;
    const left = this.#until - performance.now();
    if (left <= 0) {
      throw cause;
    }
    try {
      await sleep(Math.min(this.#pauseMs, left), undefined, signal ? { signal } : {});
    } catch {
      signal?.throwIfAborted();
    }
    this.#pauseMs = Math.min(this.#pauseMs * 2, longestPauseMs);
  }

  /** renew is called when the sidecar has answered: what comes next is new trouble. */
  renew(): void {
    this.#until = undefined;
    this.#pauseMs = firstPauseMs;
  }
}

/** brokeOff tells whether a call failed because its connection or its session ended: nothing was granted, or it is taken back. */
export function brokeOff(error: unknown): boolean {
  return error instanceof SessionEndedError || error instanceof ConnectionLostError;
}

/** isAway tells whether a call failed because the sidecar is just not there, or about to go. */
export function isAway(error: unknown): boolean {
  return brokeOff(error) || error instanceof UnreachableError || error instanceof DrainingError;
}

/** abortable waits for something that others wait for too, so that the signal ends only the waiting. */
export function abortable<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const abort = (): void => reject(signal.reason);
    if (signal.aborted) {
      abort();
    }
    signal.addEventListener("abort", abort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}
